"""What a run of a suite leaves: a line of JSON for each test, and one for each training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_WORST = (
    FAILED,
    PASSED,
    SKIPPED,
)  # a test that fails after it passed, in its teardown say, has failed

OUTCOMES, TRAININGS = "outcomes.jsonl", "trainings"


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Args:
        test: its node id.
        outcome: passed, failed or skipped.
        message: the first line of the error, or why it was skipped.
        place: the innermost line of advreg that the traceback names, as ``hf/task.py``; empty if
            there is none.
        refused: the traceback has advreg's refusal in it.
        seconds: how long it took.
    """

    test: str
    outcome: str
    message: str = ""
    place: str = ""
    refused: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Training:
    """One call of the stock ``Trainer.train``.

    Args:
        test: node id of the test that made it.
        number: which training of the test it is.
        trainer: class of the trainer.
        model: class of the model.
        method: name of advreg's method, or None if the trainer is none of advreg's.
        begun: updates that started.
        steps: updates that were made.
        error: what it ended with, if with an error.
        log: its log, without times.
        norm: of all weights at its end.
        digest: of the same.
    """

    test: str
    number: int
    trainer: str = ""
    model: str = ""
    method: str | None = None
    begun: int = 0
    steps: int = 0
    error: str | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    norm: float = 0.0
    digest: str = ""


Trainings = dict[tuple[str, int], Training]  # by test and number


@dataclass(frozen=True)
class Run:
    """A suite with one trainer.

    Args:
        outcomes: of each test.
        trainings: of all tests.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    trainings: Trainings = field(default_factory=dict)


def append(file: Path, line: Outcome | Training) -> None:
    """Add a line to a file."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(line), default=str) + "\n")


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def read(folder: Path) -> Run:
    """What a run left in its folder."""
    files = sorted((folder / TRAININGS).glob("*.jsonl"))  # one of each process
    trainings = [Training(**line) for file in files for line in _lines(file)]
    return Run(
        _outcomes(folder / OUTCOMES),
        {(training.test, training.number): training for training in trainings},
    )


def _outcomes(file: Path) -> dict[str, Outcome]:
    """The outcome of each test: the worst that setup, call, teardown and subtests report."""
    found: dict[str, Outcome] = {}
    for line in _lines(file):
        outcome = Outcome(**line)
        before = found.get(outcome.test)
        if before is None or _WORST.index(outcome.outcome) < _WORST.index(before.outcome):
            found[outcome.test] = outcome
    return found
