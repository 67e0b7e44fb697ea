"""Updates that are not finite and are withheld by the optimizer; tests/hf/test_guards.py has what a
run does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advreg.hf.checkpoint.state import checkpoints
from advreg.hf.guards.nonfinite import NonFiniteGuard, NonFiniteLossError, Update
from advreg.memory.deferred_check import LateCheck
from advreg.methods import create
from advreg.methods.base import StepReport
from observe import BadGradient, Weights, reads_in_training
from tiny_runs import same_end, tiny_trainer

FUSED: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, 0.1, fused=True),
    "Adam": lambda weights: torch.optim.Adam(weights, 0.1, fused=True),
    "SGD": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, fused=True),
}


class Slow(LateCheck):
    """Hears of everything late, as from a GPU that is busy."""

    def put(self, fine: Tensor, complain: Callable[[], None]) -> None:
        self.settle()
        self._fine, self._complain = fine, complain

    def settle(self) -> None:
        complain, self._complain = self._complain, None
        if complain is not None and not bool(self._fine):
            complain()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advreg.hf.guards.nonfinite.LateCheck", Slow)


def report(loss: float) -> StepReport:
    return StepReport(torch.tensor(loss), torch.tensor(loss))


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"sample_id": torch.tensor([5, 3])}, r"\[5, 3\]"),
        ({"sample_id": ["q-5", "q-3"]}, r"\['q-5', 'q-3'\]"),
        ({"labels": torch.zeros(2)}, "unknown"),
    ],
)
def test_samples_are_named_by_whatever_ids_a_batch_has(batch: dict[str, Any], told: str) -> None:
    with pytest.raises(NonFiniteLossError, match=rf"step 7 \(epoch 2\), sample ids {told}"):
        Update(7, 2, reports=[(batch, report(torch.nan))]).refuse(None)


def update_of(*losses: float) -> Update:
    return Update(
        step=7,
        epoch=2,
        reports=[({"sample_id": torch.tensor([5, 3])}, report(loss)) for loss in losses],
    )


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("loss", "norm"), [(1.0, torch.inf), (torch.nan, 1.0)])
def test_a_fused_optimizer_leaves_weights_and_moments_alone_where_an_update_is_not_finite(
    name: str, loss: float, norm: float, slow: None
) -> None:
    optimizers, ends = [], []
    for has_nonfinite in (False, True):
        weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        optimizer = FUSED[name]([weight])
        assert NonFiniteGuard.supports(optimizer)
        guard = NonFiniteGuard(optimizer)
        for number in range(4):
            if number == 2 and has_nonfinite:
                weight.grad = torch.tensor([torch.nan, 1.0])
                guard.check(update_of(loss), torch.tensor(norm))
                optimizer.step()
                guard._late = Slow()  # nobody asks
            weight.grad = torch.tensor([0.5, number - 1.0])
            guard.check(update_of(1.0), torch.tensor(1.0))
            optimizer.step()
        optimizers.append(optimizer)
        ends.append({"weight": weight.detach(), **optimizer.state[weight]})
    for key, value in ends[0].items():
        assert torch.equal(ends[1][key], value), key


def test_an_optimizer_that_knows_no_flag_is_not_asked_to_withhold() -> None:
    assert not NonFiniteGuard.supports(
        torch.optim.AdamW([nn.Parameter(torch.ones(1))], fused=False)
    )
    assert not NonFiniteGuard.supports(torch.optim.Adafactor([nn.Parameter(torch.ones(1))]))
    foreign = type("Foreign", (torch.optim.AdamW,), {"__module__": "elsewhere"})
    assert not NonFiniteGuard.supports(foreign([nn.Parameter(torch.ones(1))], fused=True))


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_what_is_heard_of_late_has_reached_no_weight_and_is_named_by_its_own_step(
    clip: float, slow: None, tmp_path: Path
) -> None:
    weights = Weights()
    trainer = tiny_trainer(
        tmp_path, create("standard"), callbacks=[weights, BadGradient(2)], max_grad_norm=clip, save_strategy="no",
        logging_strategy="no", weight_decay=0.1,
    )  # fmt: skip
    batches: list[list[int]] = []
    step = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: (
        batches.append(inputs["sample_id"].tolist()),
        step(model, inputs, *rest),
    )[1]
    with pytest.raises(
        NonFiniteLossError, match=r"gradient's norm is (inf|nan) at step 1 \(epoch 0\)"
    ) as caught:
        trainer.train()
    assert len(batches) == 3  # the next step was made when it was heard of
    assert f"sample ids {batches[1]}" in str(caught.value)
    assert same_end(weights.seen[1], weights.seen[0])
    assert same_end(dict(trainer.model.named_parameters()), weights.seen[0])


def test_nothing_is_saved_before_it_is_heard_of(slow: None, tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path,
        create("standard"),
        callbacks=[BadGradient(2)],
        logging_strategy="no",
        save_steps=2,
    )
    with pytest.raises(NonFiniteLossError, match=r"step 1 \(epoch 0\)"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert not checkpoints(tmp_path)


def test_the_last_update_of_a_run_is_heard_of_too(slow: None, tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path,
        create("standard"),
        callbacks=[BadGradient(4)],
        save_strategy="no",
        logging_strategy="no",
    )
    with pytest.raises(NonFiniteLossError, match=r"step 3 \(epoch 1\)"):
        trainer.train()


def test_the_optimizer_is_given_back_without_a_flag(slow: None, tmp_path: Path) -> None:
    for callbacks in ([], [BadGradient(2)]):
        trainer = tiny_trainer(
            tmp_path / str(len(callbacks)), create("standard"), callbacks=callbacks
        )
        if callbacks:
            with pytest.raises(NonFiniteLossError):
                trainer.train()
        else:
            trainer.train()
        assert NonFiniteGuard.supports(trainer.optimizer.optimizer)
        assert not hasattr(trainer.optimizer.optimizer, "found_inf")


def test_the_host_waits_for_nothing_but_the_flag_of_the_update_before(
    slow: None, tmp_path: Path
) -> None:
    quiet = {"size": 40, "save_strategy": "no", "logging_strategy": "no"}
    few, many = (
        reads_in_training(
            tiny_trainer(
                tmp_path / str(updates), create("freeat", replays=1), max_steps=updates, **quiet
            )
        )
        for updates in (3, 9)
    )
    assert many - few == 9 - 3
    waiting = tiny_trainer(
        tmp_path / "waiting", create("freeat", replays=1), max_steps=9, optim="sgd", **quiet
    )
    assert reads_in_training(waiting) > many


def test_the_first_loss_that_is_not_finite_is_named_before_the_norm() -> None:
    update = update_of(1.0, torch.inf, torch.nan)
    update.reports[1][0]["sample_id"] = torch.tensor([8, 9])
    with pytest.raises(
        NonFiniteLossError,
        match=r"the loss is inf at step 7 \(epoch 2\), sample ids \[8, 9\]: task",
    ):
        update.refuse(torch.tensor(torch.nan))
    update.drop_nonfinite()
    assert [float(each.loss) for _, each in update.reports] == [1.0]
