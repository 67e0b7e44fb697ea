"""What a comparison did, as one JSON file beside its runs' records; without torch, so that reports
can read it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from advreg.records.paths import stays_inside
from advreg.records.run import RunRecord
from advreg.records.sealed import LATER, RecordError, load_as, save_as

SCHEMA = 1
COMPARE_FILE = "compare.json"

_OUT_OF_100 = ("bleu", "chrf")

Status = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """A task.

    Args:
        name: as it was asked for.
        title: name of its data.
        main_metrics: those whose mean is its one number.
        scored_on: the set that they are taken on.
        fingerprint: of its data.
        sizes, tuning_sizes: samples to train and evaluate on, in the runs and in the tuning.
        settings: what all its runs share, but for what was tuned.
    """

    name: str
    title: str
    main_metrics: list[str]
    scored_on: str = field(default="dev", metadata=LATER)
    fingerprint: str
    sizes: dict[str, int] = field(default_factory=dict)
    tuning_sizes: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that were tried on held-out training data.

    Args:
        settings: what the grid set: common settings and options of the method.
        seed: of its one run.
        folder: of the run, within the comparison's.
        score: the task's main score there, in percent; null if it failed or is still to come.
        error: why it failed.
        seconds: its training took.
    """

    settings: dict[str, Any]
    seed: int
    folder: str
    score: float | None = None
    error: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The tuning of one method on one task.

    Args:
        task, method: of which.
        grid_size: points of the method's whole grid.
        candidates: those tried, in their order; none: no tuning.
        chosen: place of the best among them; null: not decided yet, no tuning, or none could be
            trained.
    """

    task: str
    method: str
    grid_size: int
    candidates: list[Candidate]
    chosen: int | None = None


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run with the chosen settings; ``error`` is why it has no finished record."""

    task: str
    method: str
    seed: int
    folder: str
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRecord:
    """One comparison.

    Args:
        schema: version of this layout.
        kind: tells it from other records.
        status: was it carried out to its end?
        settings: the methods, the seeds and the model.
        grid: the values tuned over: ``common``, and each method's own under its name.
        search: how candidates were drawn and judged.
        reference: the method that the others are compared with.
        tasks, choices, runs: what was done.
        notes: what a reader must know to judge it, such as unequal numbers of candidates.
        environment: as :func:`advreg.records.environment.capture_environment` gives it;
            ``device`` names every device of the runs.
        started, finished: times in UTC; ``finished`` is that of the last change.
    """

    schema: int = SCHEMA
    kind: Literal["compare"] = "compare"
    status: Status
    settings: dict[str, Any]
    grid: dict[str, dict[str, list[Any]]]
    search: dict[str, Any]
    reference: str
    tasks: list[ComparedTask]
    choices: list[Choice]
    runs: list[ComparedRun]
    notes: list[str]
    environment: dict[str, Any]
    started: str
    finished: str

    def save(self, folder: Path) -> None:
        save_as(folder / COMPARE_FILE, self)


def load(place: Path) -> CompareRecord:
    """Read a comparison's file; errors as in :func:`~advreg.records.sealed.load_as`."""
    path = place / COMPARE_FILE
    if not path.is_file():
        raise RecordError(
            "is not there", "give the --output folder of an `advreg compare`", path=path
        )
    record = load_as(path, CompareRecord)
    tried = [candidate.folder for choice in record.choices for candidate in choice.candidates]
    for folder in [*tried, *(run.folder for run in record.runs)]:
        if not stays_inside(folder):  # runs are trained, and tidied up, in there
            told = f"must be in the folder of the comparison, got '{folder}'"
            raise RecordError(
                told, "do not go on with a record that is not yours", field="folder", path=path
            )
    return record


def score_of(metrics: Mapping[str, float | None], main_metrics: Sequence[str]) -> float | None:
    """The mean of the main metrics that were taken, in percent; ``None`` if one is not a number, or
    none is there.

    Example:
        >>> score_of({"accuracy": 0.84, "f1": 0.89, "loss": 0.3}, ["accuracy", "f1"])
        86.5
        >>> score_of({"bleu": 31.5}, ["bleu"])
        31.5
    """
    values = [in_percent(name, metrics[name]) for name in main_metrics if name in metrics]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(values) else None


def in_percent(metric: str, value: float | None) -> float | None:
    """A score out of 100: those of translation are so already."""
    return 100 * value if value is not None and is_share(metric) else value


def is_share(metric: str) -> bool:
    """Is a score a share, which reads as percent? BLEU and chrF are numbers up to 100, and not a
    percentage.
    """
    return not metric.endswith(_OUT_OF_100)


def seconds_of(run: RunRecord) -> float:
    """What the steps of a run took, without evaluations and saves."""
    return (run.outcome.timing.get("seconds_per_step") or 0.0) * (
        run.outcome.timing.get("steps") or 0.0
    )


def wall_seconds(run: RunRecord) -> float:
    """From start to end of a run, whatever it did; 0 for one that has not ended."""
    if run.finished is None:
        return 0.0
    return (
        datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)
    ).total_seconds()


class Saved(Protocol):
    """A record that can be put into a folder."""

    def save(self, folder: Path) -> Any: ...


R = TypeVar("R", bound=Saved)


def recorded(record: Callable[[Status], R], folder: Path, work: Callable[[], object]) -> R:
    """Do the work; the record is in the folder at every moment from here on, and says whether the
    user stopped it.
    """
    record("running").save(folder)
    try:
        work()
    except KeyboardInterrupt:
        record("interrupted").save(folder)
        raise
    done = record("finished")
    done.save(folder)
    return done
