from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.bench.peers import SmartPytorch, smart_pytorch_entries
from advreg.bench.run import Bench
from advreg.bench.settings import BenchSettings
from advreg.core.schedule import Clock
from advreg.hf.task import ModelTask
from tiny_models import tiny, tiny_batch

SETTINGS = BenchSettings(
    shapes=("2x4",), methods=("arch:cache_fraction=0.5",), device="cpu", samples=20, warmup=1, steps=1, rounds=2
)


class Loss(torch.nn.Module):
    """Stands for smart_pytorch.SMARTLoss: the same call, counted passes and no normalisation."""

    def __init__(self, eval_fn: Any, loss_fn: Any, loss_last_fn: Any, num_steps: int = 1) -> None:
        super().__init__()
        self.eval_fn, self.loss_fn, self.loss_last_fn, self.num_steps = eval_fn, loss_fn, loss_last_fn, num_steps

    def forward(self, embed: Tensor, state: Tensor) -> Tensor:
        noise = torch.randn_like(embed, requires_grad=True) * 1e-3
        for _ in range(self.num_steps):
            (gradient,) = torch.autograd.grad(self.loss_fn(self.eval_fn(embed + noise), state.detach()), noise)
            noise = (noise + gradient).detach().requires_grad_()
        found: Tensor = self.loss_last_fn(self.eval_fn(embed + noise), state)
        return found


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(first: Tensor, second: Tensor) -> Tensor:
        return (F.log_softmax(first, -1) - F.log_softmax(second, -1)).square().sum()

    stand_in: Any = ModuleType("smart_pytorch")
    stand_in.SMARTLoss, stand_in.kl_loss, stand_in.sym_kl_loss = Loss, apart, apart
    stand_in.__spec__ = object()  # find_spec looks for one
    monkeypatch.setitem(sys.modules, "smart_pytorch", stand_in)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_other_package_does_the_passes_it_is_reckoned_with(package: None, steps: int) -> None:
    model = tiny("bert")
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    method = SmartPytorch(steps)
    report = method.step(ModelTask(model), tiny_batch("bert"), Clock(0, 0))  # type: ignore[arg-type]
    assert len(seen) == method.passes().forward == 2 + steps
    assert report.penalty is not None
    assert float(report.penalty) > 0
    assert all(value.grad is not None for value in model.classifier.parameters())


def test_it_is_measured_with_its_own_steps_and_with_ours(package: None) -> None:
    methods, reason = smart_pytorch_entries(
        dataclasses.replace(SETTINGS, methods=("smart:ascent_steps=2",)), ModelTask(tiny("bert"))
    )
    assert reason is None
    assert [getattr(method, "ascent_steps", None) for method in methods] == [1, 2]


def test_it_is_left_out_of_translation_with_a_reason(package: None) -> None:
    methods, reason = smart_pytorch_entries(SETTINGS, ModelTask(tiny("marian")))
    assert methods == []
    assert reason == "smart-pytorch perturbs one input; it is not measured on encoder–decoder models"


def test_peers_get_rows_beside_ours_and_trainers_are_divided_by_the_stock_one(package: None) -> None:
    record = Bench(dataclasses.replace(SETTINGS, peers=True)).run()
    rows = {row.name: row for row in record.panels[0].rows}
    trainers = [name for name, row in rows.items() if row.against == "Trainer"]
    assert trainers == [
        "Trainer",
        "AdversarialTrainer, standard",
        "AdversarialTrainer, arch (cache_fraction=0.5), reuse",
        "AdversarialTrainer, arch (cache_fraction=0.5), refresh",
    ]
    stock = rows["Trainer"].rounds
    for name in trainers:
        ratio = rows[name].ratio
        assert ratio is not None
        mine = [one / other for one, other in zip(rows[name].rounds, stock, strict=True)]
        assert (ratio.least, ratio.most) == pytest.approx((min(mine), max(mine)))
    assert rows["smart-pytorch, S=1"].against == "standard"
    assert len(rows["smart-pytorch, S=3"].rounds) == SETTINGS.rounds


def test_a_package_that_is_not_installed_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smart_pytorch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    methods, reason = smart_pytorch_entries(SETTINGS, ModelTask(tiny("bert")))
    assert methods == []
    assert reason is not None
    assert reason.startswith("smart-pytorch is not installed, so it is not measured")
