"""Components by themselves, without a Trainer."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer

from advreg.hf.components.component import is_stock
from advreg.hf.components.steps import TrainingMode
from advreg.hf.components.updates import Logs, UpdateCheck
from advreg.hf.counting import PassCount, Tally, Timer
from advreg.hf.guards.nonfinite import NonFiniteGuard, NonFiniteLossError, Update
from advreg.methods.base import StepReport


def attachment(on_non_finite: str = "stop", **arguments: Any) -> Any:
    """What a component reads of an attachment and its trainer."""
    model = nn.Linear(2, 1)
    args = SimpleNamespace(fp16=False, world_size=1, **arguments)
    trainer = SimpleNamespace(
        args=args,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
        state=SimpleNamespace(global_step=2),
        control=SimpleNamespace(should_log=False, should_evaluate=False, should_save=False),
    )
    return SimpleNamespace(
        trainer=trainer,
        own=SimpleNamespace(),
        on_non_finite=on_non_finite,
        update=Update(step=7),
        tally=Tally(),
        loss=SimpleNamespace(group=2),
    )


def report(loss: float, penalty: float | None = None, **measures: float) -> StepReport:
    extra = None if penalty is None else torch.tensor(penalty)
    return StepReport(torch.tensor(loss), torch.tensor(loss), extra, measures)


# ---- the check of an update


@pytest.mark.parametrize("norm", [1.0, torch.nan])
def test_an_update_that_is_not_finite_is_skipped_with_what_it_reported(
    norm: float, caplog: pytest.LogCaptureFixture
) -> None:
    attached = attachment("skip")
    attached.own._get_grad_norm = lambda model, grad_norm: torch.tensor(norm)
    attached.update.reports = [({}, report(1.0)), ({}, report(torch.nan))][: 2 if norm == 1 else 1]
    attached.trainer.model.weight.grad = torch.ones(1, 2)
    check = UpdateCheck(attached)
    check.begin()
    assert check.guard is None
    with caplog.at_level(logging.WARNING):
        assert torch.equal(check._get_grad_norm(nn.Identity()), torch.tensor(norm)) == (norm == 1)
    assert attached.update.has_nonfinite
    assert attached.tally.skipped == 1
    assert [float(each.loss) for _, each in attached.update.reports] == [1.0]
    assert attached.trainer.model.weight.grad is None
    assert "not finite at step 7" in caplog.text


def test_an_update_that_is_not_finite_stops_or_is_ignored() -> None:
    for on_non_finite in ("stop", "ignore"):
        attached = attachment(on_non_finite)
        attached.own._get_grad_norm = lambda model, grad_norm: torch.tensor(torch.inf)
        check = UpdateCheck(attached)
        check.begin()
        if on_non_finite == "ignore":
            check._get_grad_norm(nn.Identity())
        else:
            with pytest.raises(NonFiniteLossError, match="norm is inf at step 7"):
                check._get_grad_norm(nn.Identity())


def test_a_fused_optimizer_skips_by_itself_and_is_released() -> None:
    attached = attachment()
    weights = attached.trainer.model.parameters()
    attached.trainer.optimizer = torch.optim.AdamW(weights, fused=True)
    attached.own._get_grad_norm = lambda model, grad_norm: torch.tensor(1.0)
    check = UpdateCheck(attached)
    check.begin()
    assert isinstance(check.guard, NonFiniteGuard)
    check._get_grad_norm(nn.Identity())
    assert float(attached.trainer.optimizer.found_inf) == 0
    check.release()
    assert not hasattr(attached.trainer.optimizer, "found_inf")


def test_the_last_update_is_checked_before_it_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    attached, calls = attachment(), []
    attached.own._maybe_log_save_evaluate = lambda *_: calls.append("stock")
    check = UpdateCheck(attached)
    monkeypatch.setattr(check, "settle", lambda: calls.append("settle"))
    check._maybe_log_save_evaluate()
    attached.trainer.control.should_save = True
    check._maybe_log_save_evaluate()
    assert calls == ["stock", "settle", "stock"]


# ---- logs


def test_a_log_of_the_training_has_the_means_since_the_last_one() -> None:
    attached, written = attachment(), []
    attached.own.log = written.append
    logs = Logs(attached)
    logs.add(report(1.0, 0.5, delta_norm=2.0))
    logs.add(report(3.0, 1.5, delta_norm=4.0))
    logs.log({"eval_loss": 9.0})
    logs.log({"loss": 8.0})
    logs.log({"loss": 7.0})
    assert written == [
        {"eval_loss": 9.0},
        {"loss": 8.0, "task_loss": 4.0, "penalty": 2.0, "delta_norm": 3.0},  # groups of two
        {"loss": 7.0},
    ]


# ---- the rest


def test_a_tally_comes_back_from_what_it_saves() -> None:
    tally = Tally(PassCount(3.0, 2.0, 4), Timer([1.0, 2.0], 5), skipped=1, planned=9)
    again = Tally.restored(tally.state())
    assert again.state() == tally.state()
    unknown = Tally.restored({}).state()  # of a checkpoint from before the loss was counted
    assert math.isnan(unknown.pop("loss"))
    assert unknown == {name: each for name, each in Tally().state().items() if name != "loss"}


def test_the_mode_of_a_model_is_set_only_where_it_changes_something() -> None:
    calls: list[bool] = []

    class Noted(nn.Dropout):
        def train(self, mode: bool = True) -> Noted:
            calls.append(mode)
            return super().train(mode)

    model, modes = nn.Sequential(Noted()), TrainingMode()
    with modes.kept(model):
        assert model.train() is model
        assert calls == []
        assert model.train(False) is model
        assert calls == [False]
    with modes.kept(model):
        model.train()
    assert calls == [False, True]
    assert "train" not in vars(model)


def test_a_train_of_the_instance_is_called_and_stays() -> None:
    model, calls = nn.Sequential(nn.Dropout()), []

    def train(mode: bool = True) -> nn.Module:
        calls.append(mode)
        return nn.Module.train(model, mode)

    model.train = train  # type: ignore[method-assign]
    with TrainingMode().kept(model):
        model.train()
    assert calls == [True]
    assert model.train is train


def test_overrides_are_told_from_methods_of_transformers() -> None:
    class Users(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
            return torch.zeros(())

    trainer = object.__new__(Users)
    assert is_stock(trainer.training_step)
    assert not is_stock(trainer.compute_loss)
    assert not is_stock(lambda: None)
