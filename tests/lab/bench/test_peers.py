from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.schedule import Clock
from advreg.hf.components.steps import StepRunner
from advreg.hf.view.view import HFModelView
from advreg.lab.bench import peers
from advreg.lab.bench.peers import (
    SmartPytorch,
    TrainerEntry,
    smart_pytorch_entries,
    time_trainer,
    trainer_entries,
    trainer_rows,
)
from advreg.lab.bench.run import Bench
from advreg.lab.bench.settings import BenchSettings, Shape
from advreg.lab.bench.stopwatch import Lap, TrainerJob
from advreg.methods import Step
from tiny_models import tiny, tiny_batch

SETTINGS = BenchSettings(
    shapes=("2x4",),
    methods=("r3f", "arch:cache_fraction=0.5"),
    device="cpu",
    samples=20,
    warmup=1,
    steps=1,
    rounds=2,
)


class Loss(torch.nn.Module):
    """Stands for smart_pytorch.SMARTLoss: the same call, counted passes and no normalisation."""

    def __init__(self, eval_fn: Any, loss_fn: Any, loss_last_fn: Any, num_steps: int = 1) -> None:
        super().__init__()
        self.eval_fn, self.loss_fn, self.loss_last_fn, self.num_steps = (
            eval_fn,
            loss_fn,
            loss_last_fn,
            num_steps,
        )

    def forward(self, embed: Tensor, state: Tensor) -> Tensor:
        noise = torch.randn_like(embed, requires_grad=True) * 1e-3
        for _ in range(self.num_steps):
            (gradient,) = torch.autograd.grad(
                self.loss_fn(self.eval_fn(embed + noise), state.detach()), noise
            )
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
    report = method.step(HFModelView(model), tiny_batch("bert"), Step(Clock(0, 0)))  # type: ignore[arg-type]
    assert len(seen) == method.passes().forward == 2 + steps
    assert report.penalty is not None
    assert float(report.penalty) > 0
    assert all(value.grad is not None for value in model.classifier.parameters())


def test_it_is_measured_with_its_own_steps_and_with_ours(package: None) -> None:
    methods, reason = smart_pytorch_entries(
        dataclasses.replace(SETTINGS, methods=("smart:ascent_steps=2",)), HFModelView(tiny("bert"))
    )
    assert reason is None
    assert [getattr(method, "ascent_steps", None) for method in methods] == [1, 2]


def test_it_is_left_out_of_translation_with_a_reason(package: None) -> None:
    methods, reason = smart_pytorch_entries(SETTINGS, HFModelView(tiny("marian")))
    assert methods == []
    assert (
        reason == "smart-pytorch perturbs one input; it is not measured on encoder–decoder models"
    )


def test_every_method_has_a_row_of_trainer_steps_and_is_divided_by_the_stock_trainer() -> None:
    record = Bench(SETTINGS).run()
    rows = {row.name: row for row in record.panels[0].rows}
    trainers = [name for name, row in rows.items() if row.against == "Trainer"]
    assert trainers == [
        "Trainer",
        "AdversarialTrainer, standard",
        "AdversarialTrainer, r3f",
        "AdversarialTrainer, arch (cache_fraction=0.5), reuse",
        "AdversarialTrainer, arch (cache_fraction=0.5), refresh",
    ]
    stock = rows["Trainer"].rounds
    for name in trainers:
        ratio = rows[name].ratio
        assert ratio is not None
        mine = [one / other for one, other in zip(rows[name].rounds, stock, strict=True)]
        assert (ratio.least, ratio.most) == pytest.approx((min(mine), max(mine)))


def test_rows_of_trainers_are_timed_in_the_trainer_s_own_training_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []
    whole = StepRunner.training_step

    def training_step(self: Any, *args: Any) -> Tensor:
        steps.append(self.method.info.name)
        return whole(self, *args)

    monkeypatch.setattr(StepRunner, "training_step", training_step)
    Bench(dataclasses.replace(SETTINGS, rounds=1)).run()
    assert Counter(steps) == {
        "standard": 2,
        "r3f": 2,
        "arch": 4,
    }  # ARCH's refresh and reuse are an epoch each


def test_trainers_can_be_left_out() -> None:
    record = Bench(dataclasses.replace(SETTINGS, trainers=False)).run()
    assert all(row.against == "standard" for row in record.panels[0].rows)


@pytest.mark.parametrize(
    ("method", "reuse_only", "epochs"),
    [
        ("r3f", False, {"always": 0}),
        ("arch", False, {"reuse": 1, "refresh": 0}),
        ("arch", True, {"reuse": 1}),
        ("arch:refresh_every=1", False, {"refresh": 0}),
        ("arch:refresh_every=1", True, None),
    ],
)
def test_a_row_shows_an_epoch_of_its_kind(
    method: str, reuse_only: bool, epochs: dict[str, int] | None
) -> None:
    entries = trainer_entries(
        dataclasses.replace(SETTINGS, methods=(method,), reuse_only=reuse_only)
    )
    assert [entry.epochs for entry in entries[2:]] == ([] if epochs is None else [epochs])


def test_the_memory_of_a_trainer_is_the_largest_peak_of_its_rounds() -> None:
    entry = TrainerEntry("Trainer", None, {"always": 0})
    laps = [Lap(2.0, 30), Lap(3.0, 50), Lap(4.0, 40)]
    (row,) = trainer_rows([entry], {"Trainer": laps})
    assert (row.rounds, row.peak_bytes) == ([2.0, 3.0, 4.0], 50)
    (row,) = trainer_rows([entry], {"Trainer": [Lap(2.0)]})
    assert row.peak_bytes is None


def test_trainers_are_compiled_when_the_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[TrainerJob] = []

    def laps_of(job: TrainerJob, warmup: int, steps: int) -> list[Lap]:
        jobs.append(job)
        return [Lap(1.0)]

    monkeypatch.setattr(peers, "laps_of", laps_of)
    entry = TrainerEntry("Trainer", None, {"always": 0})
    settings = dataclasses.replace(SETTINGS, compile=True, compile_mode="reduce-overhead")
    time_trainer(entry, None, [], Shape(2, 4), settings)
    assert (jobs[0].compile, jobs[0].compile_mode) == (True, "reduce-overhead")


def test_other_packages_get_rows_beside_ours(package: None) -> None:
    record = Bench(dataclasses.replace(SETTINGS, trainers=False, peers=True)).run()
    rows = {row.name: row for row in record.panels[0].rows}
    assert rows["smart-pytorch, S=1"].against == "standard"
    assert len(rows["smart-pytorch, S=3"].rounds) == SETTINGS.rounds


def test_a_package_that_is_not_installed_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smart_pytorch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    methods, reason = smart_pytorch_entries(SETTINGS, HFModelView(tiny("bert")))
    assert methods == []
    assert reason is not None
    assert reason.startswith("smart-pytorch is not installed, so it is not measured")
