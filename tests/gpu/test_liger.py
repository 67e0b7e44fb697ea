"""Models with liger-kernel's fused kernels, which run on a GPU alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers.models.llama import modeling_llama

from advreg.methods import Method, create, registry
from works import data
from works.cases import COUNTED_TWICE, ByTrainer, Setting, without_effect
from works.traces import Trace, require_identical, require_like, weights_of
from works.trainer_cases import of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.skipif(
        importlib.util.find_spec("liger_kernel") is None, reason="needs liger-kernel"
    ),
]

CASE = ByTrainer(
    of("llama-lm", data.continued), fields={"use_cpu": False, "use_liger_kernel": True}
)

stock: list[Trace] = []


@pytest.fixture(autouse=True)
def _liger_is_taken_back() -> Iterator[None]:
    """It replaces functions and classes of the model's module."""
    before = dict(vars(modeling_llama))
    yield
    vars(modeling_llama).update(before)


def trained(method: Method | None, setting: Setting) -> Trace:
    trainer = CASE.trainer(method, setting)
    before = weights_of(trainer.model)
    trainer.train()
    assert vars(trainer.model)["forward"].__module__.startswith("liger_kernel.")
    return Trace.of(trainer, before)


@pytest.mark.parametrize("name", list(registry))
def test_a_method_without_effect_trains_as_stock_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("view.view", "guards.requirements"):  # R-Drop refuses a model without dropout
        monkeypatch.setattr(f"advreg.hf.{place}.has_dropout", lambda *_, **__: True)
    if not stock:
        stock.append(trained(None, Setting(tmp_path / "stock")))
    ours = trained(without_effect(name), Setting(tmp_path / "ours"))
    require_like(ours, stock[0], ignoring=COUNTED_TWICE.get(name, ()))


def test_standard_is_the_stock_trainer_to_the_bit(tmp_path: Path) -> None:
    methods = {"ours": create("standard"), "stock": None}
    require_identical(
        *(trained(method, Setting(tmp_path / side, 0.1)) for side, method in methods.items())
    )


@pytest.mark.parametrize("name", ["r3f", "rdrop", "simcut", "smart", "arch", "temporal"])
def test_a_penalty_is_there(name: str, tmp_path: Path) -> None:
    """With dropout and the methods' defaults; the cached prediction has none in the first epoch."""
    ours = trained(create(name), Setting(tmp_path, 0.1))
    assert all(torch.isfinite(torch.tensor(ours.logged("loss"))))
    assert ours.logged("penalty")[-1] > 0
