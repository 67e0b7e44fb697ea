"""Passes and seconds, counted from outside."""

import time
from typing import Any

import pytest
import torch

from advreg.hf.counting import PassCount, Timer
from advreg.hf.view.view import HFModelView
from tiny_models import tiny, tiny_batch


@pytest.fixture
def counted() -> Any:
    model, batch, count = tiny("bert", dropout=0.0), tiny_batch("bert"), PassCount()
    view = HFModelView(model)
    view.count_in(count)
    return view, HFModelView(model), batch, count


def test_every_kind_of_pass_counts_and_changes_nothing(counted: Any) -> None:
    counting, task, batch, count = counted
    delta = task.zeros(batch).map(lambda values, _: torch.full_like(values, 0.1)).leaf()
    for call, passes in (
        (lambda one: one.logits(batch), 1),
        (lambda one: one.logits(batch, delta), 1),
        (lambda one: one.loss_at(batch, delta), 1),
        (lambda one: one.bare_logits(batch, delta), 1),
        (lambda one: one.ascent_logits(batch, delta), 1),
        (lambda one: one.paired_logits(batch, delta)[1], 2),
        (lambda one: one.paired_logits(batch, delta, both_losses=True)[1], 2),
        (lambda one: one.paired_logits(batch, delta, fuse=False)[1], 2),
        (lambda one: one.paired_logits(batch, delta, fuse=False, both_losses=True)[1], 2),
        (lambda one: one.averaged(batch, task.parameters()), 1),
    ):
        before = count.forward
        assert torch.equal(call(counting), call(task))
        assert count.forward - before == passes
    assert count.backward == 0


def test_a_pass_over_a_part_of_the_batch_is_a_part_of_a_pass(counted: Any) -> None:
    counting, _, batch, count = counted
    counting.count_in(count, rows=len(batch["input_ids"]))
    part = counting.part(batch, slice(0, 1))
    delta = counting.zeros(part).leaf()
    counting.gradient(counting.bare_logits(part, delta).sum(), delta)
    share = 1 / len(batch["input_ids"])
    assert count == PassCount(forward=share, backward=share)


def test_gradients_of_delta_are_backward_passes(counted: Any) -> None:
    counting, task, batch, count = counted
    delta = task.zeros(batch).leaf()
    gradient = counting.gradient(counting.bare_logits(batch, delta).sum(), delta)
    assert bool(gradient.values["tokens"].any())
    assert count == PassCount(forward=1, backward=1)


def test_what_is_no_pass_is_not_counted(counted: Any) -> None:
    counting, task, batch, count = counted
    assert counting.items(batch) == task.items(batch)
    assert set(counting.zeros(batch).values) == {"tokens"}
    with counting.dropout("off"):
        assert not task.model.training
    assert count == PassCount()


def test_means_are_per_step_and_there_is_none_before_the_first() -> None:
    assert PassCount(9.0, 6.0, 3).per_step() == {"forward": 3.0, "backward": 2.0}
    assert PassCount().per_step() == {"forward": 0.0, "backward": 0.0}
    assert Timer([4.0, 2.0], 3).per_step() == 2.0
    assert Timer().per_step() == 0.0


def test_the_timer_counts_from_start_to_stop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.5, 100.0, 100.25])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = Timer()
    for _ in range(2):
        timer.start()
        timer.stop()
    assert (timer.seconds, timer.updates) == (1.75, 2)


def test_a_busy_moment_does_not_show_and_epochs_of_different_cost_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [
        5.0,
        5.0,
        90.0,
        1.0,
        1.0,
        1.0,
        70.0,
        1.0,
    ]  # an epoch of three dear steps, one of five cheap ones
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timer = Timer()
    for number, step in enumerate(steps):
        if number == 3:
            timer.turn(1)
        timer.start()
        now += step
        timer.stop()
    assert (timer.seconds, timer.updates) == (3 * 5.0 + 5 * 1.0, 8)
    timer.turn(2)
    assert timer.epochs == [15.0, 5.0]
    assert Timer(timer.epochs, timer.updates).per_step() == timer.per_step() == 20.0 / 8


def test_an_epoch_that_a_run_was_stopped_in_counts_what_was_spent_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timer = Timer([10.0, 4.0], 7)  # of epoch 1 something is left
    timer.turn(1)
    timer.start()
    now += 2.0
    timer.stop()
    assert (timer.epochs, timer.updates) == ([10.0, 6.0], 8)
    timer.turn(2)
    timer.start()
    now += 3.0
    timer.stop()
    assert (timer.epochs, timer.seconds, timer.updates) == ([10.0, 6.0, 3.0], 19.0, 9)
    later = Timer([10.0], 5)  # stopped at the very end of epoch 0
    later.turn(1)
    later.start()
    now += 1.0
    later.stop()
    assert later.epochs == [10.0, 1.0]
