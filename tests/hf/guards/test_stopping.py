"""SIGINT and SIGTERM: a checkpoint of the step at hand, a stated exit code, and the second one
leaves at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from advreg.hf.checkpoint.state import checkpoints, last_whole_checkpoint
from advreg.hf.guards.stopping import Stop
from tiny_models import tiny
from tiny_runs import end_of, same_end, tiny_trainer

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _nobody_said_to_ignore_them() -> Iterator[None]:
    """As ``nohup`` and shells do that put a command into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Strike(TrainerCallback):  # type: ignore[misc]
    """Sends this process signals when a step begins."""

    def __init__(self, step: int, *numbers: int) -> None:
        self.step, self.numbers = step, numbers

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "leaving"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_run_that_is_asked_to_stop_saves_its_step_and_goes_on_from_there_to_the_same_end(
    number: int, leaving: type[BaseException], step: int, tmp_path: Path
) -> None:
    before = [signal.getsignal(one) for one in BOTH]
    whole = tiny_trainer(tmp_path / "whole", save_strategy="no")
    whole.train()
    trainer = tiny_trainer(
        tmp_path / "run", save_strategy="epoch", callbacks=[Strike(step, number)]
    )
    with pytest.raises(leaving) as left:
        trainer.train()
    if leaving is SystemExit:
        assert left.value.code == 143  # type: ignore[attr-defined]
    assert [signal.getsignal(one) for one in BOTH] == before
    assert last_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / f"checkpoint-{step}"
    again = tiny_trainer(
        tmp_path / "run", model=tiny("bert", seed=3, dropout=0.1), save_strategy="epoch"
    )
    again.train(resume_from_checkpoint=True)
    assert same_end(end_of(again), end_of(whole))


@pytest.mark.parametrize(
    ("numbers", "leaving"),
    [
        ((signal.SIGINT, signal.SIGINT), KeyboardInterrupt),
        ((signal.SIGTERM, signal.SIGINT), KeyboardInterrupt),
        ((signal.SIGINT, signal.SIGTERM), SystemExit),
    ],
)
def test_the_second_signal_leaves_at_once(
    numbers: tuple[int, ...], leaving: type[BaseException], tmp_path: Path
) -> None:
    trainer = tiny_trainer(tmp_path, callbacks=[Strike(3, *numbers)])
    with pytest.raises(leaving):
        trainer.train()
    assert list(checkpoints(tmp_path)) == [2, 1]
    assert trainer.state.global_step == 2


def test_a_run_that_does_not_save_stops_without_a_checkpoint(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, save_strategy="no", callbacks=[Strike(2, signal.SIGINT)])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 2
    assert not checkpoints(tmp_path)


def test_a_handler_of_the_programs_own_is_called_once_the_step_is_saved(tmp_path: Path) -> None:
    class MineError(Exception):
        pass

    def handler(*_: Any) -> None:
        raise MineError

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(MineError):
            tiny_trainer(tmp_path, callbacks=[Strike(2, signal.SIGTERM)]).train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(checkpoints(tmp_path)) == [2, 1]


def test_a_signal_that_is_ignored_stays_ignored_and_other_threads_touch_none() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.asked is None
    finally:
        signal.signal(signal.SIGINT, before)
    seen: list[Any] = []

    def inside() -> None:
        with Stop():
            seen.extend(signal.getsignal(one) for one in BOTH)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(one) for one in BOTH]


def test_a_request_in_the_last_moment_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), Stop():  # noqa: PT012 - the end of the block is what raises
        os.kill(os.getpid(), signal.SIGINT)
        signal.getsignal(signal.SIGINT)
