"""The record of a comparison: one JSON file in the folder that holds the records of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from advreg.records.environment import EnvironmentInfo
from advreg.records.paths import stays_inside
from advreg.records.run import RunRecord
from advreg.records.sealed import Payload, RecordError, Upgrade, load_as, save_as

COMPARE_FILE = "compare.json"

_OUT_OF_100 = ("bleu", "chrf")
_OWN_SCALE = ("loss", "perplexity")

Status = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """A task.

    Args:
        name: as given to ``--task``.
        title: name of its data.
        main_metrics: the metrics whose mean is the score.
        scored_on: the split that is scored.
        fingerprint: of its data.
        sizes, tuning_sizes: samples to train and evaluate on, in the runs and in the tuning.
        settings: the settings that all its runs share; tuned ones are left out.
    """

    name: str
    title: str
    main_metrics: list[str]
    scored_on: str = "dev"
    fingerprint: str
    sizes: dict[str, int] = field(default_factory=dict)
    tuning_sizes: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TunedRun:
    """One run of a candidate, with one tuning seed; the fields are those of :class:`Candidate`."""

    seed: int
    folder: str
    score: float | None = None
    error: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that were tried on held-out training data.

    Args:
        settings: the values from the grid: common settings and options of the method.
        seed: of its first run.
        folder: of this run, relative to the comparison's.
        score: the task's main score there, the mean over its runs, in percent; null if a run failed
            or none has ended yet.
        error: why it failed.
        seconds: duration of its trainings.
        runs: its runs; candidates that were behind have fewer. Empty in records of a single run a
            candidate.
    """

    settings: dict[str, Any]
    seed: int
    folder: str
    score: float | None = None
    error: str | None = None
    seconds: float | None = None
    runs: list[TunedRun] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The tuning of one method on one task.

    Args:
        task, method: what was tuned.
        grid_size: points of the method's whole grid.
        candidates: the points that were tried, in order; empty without tuning.
        chosen: index of the best of them; null: not decided yet, no tuning, or none could be
            trained.
        problem: why nothing could be chosen.
    """

    task: str
    method: str
    grid_size: int
    candidates: list[Candidate]
    chosen: int | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run with the chosen settings; ``error`` is why it has no finished record."""

    task: str
    method: str
    seed: int
    folder: str
    error: str | None = None


def name_the_split(task: Payload) -> Payload:
    """Schema 1 did not always say on which split a task is scored: it was the dev set."""
    return {"scored_on": "dev"} | task


def _name_the_splits(record: Payload) -> Payload:
    return record | {"tasks": [name_the_split(task) for task in record["tasks"]]}


def _add_verdicts(record: Payload) -> Payload:
    """Schema 3 has tuning runs, gains with verdicts, controls, a conclusion and the best model."""
    choices = [
        choice
        | {
            "problem": None,
            "candidates": [candidate | {"runs": []} for candidate in choice["candidates"]],
        }
        for choice in record["choices"]
    ]
    added: Payload = {
        "controls": {},
        "gains": [],
        "conclusion": None,
        "best": {},
        "spent_seconds": 0.0,
    }
    return record | added | {"choices": choices}


@dataclass(frozen=True, kw_only=True)
class MethodGain:
    """What a method, or a control, gains over the reference, paired by seed.

    Args:
        method: which; a control by its name in :attr:`CompareRecord.controls`.
        task: on which; null: the mean over all tasks, where there are several.
        seeds: with a score of both.
        mean: how much better it is, in percent, points of BLEU, or less perplexity; null without a
            seed.
        low, high: the interval, valid although seeds were added until a verdict was reached; null
            with fewer than two seeds.
        sampling_error: the part of the standard error that the choice of test samples has; null if
            it is not known, and the interval is over seeds alone.
        time: duration of a training over the reference's, by the median over pairs.
        verdict: pays, does not pay, or undecided; null for a control, and for a single task of
            several.
        flaw: why the method cannot pay, such as a run that diverged or is missing.
    """

    method: str
    task: str | None
    seeds: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    sampling_error: float | None = None
    time: float | None = None
    verdict: str | None = None
    flaw: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRecord:
    """One comparison.

    Args:
        schema: version of this layout.
        kind: distinguishes it from other records.
        status: whether the comparison finished.
        settings: the methods, the seeds and the model.
        grid: the values tuned over: ``common``, and each method's options under its name.
        search: how candidates were drawn and judged.
        reference: the method that the others are compared with.
        tasks, choices, runs: its parts, in order.
        notes: caveats for the reader, such as unequal numbers of candidates.
        controls: titles of the rows that are no methods, such as longer training of Standard.
        gains: over the reference; of the primary outcome first.
        conclusion: what the comparison says, in one sentence.
        best: folders of the winner's runs with their models, by task, relative to the comparison's.
        spent_seconds: running time, added over all sessions.
        environment: as :func:`advreg.records.environment.capture_environment` gives it;
            ``device`` names every device of the runs.
        started, finished: times in UTC; ``finished`` is the time of the last change.
    """

    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _name_the_splits, 2: _add_verdicts}

    schema: int = 3
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
    controls: dict[str, str] = field(default_factory=dict)
    gains: list[MethodGain] = field(default_factory=list)
    conclusion: str | None = None
    best: dict[str, str] = field(default_factory=dict)
    spent_seconds: float = 0.0
    environment: EnvironmentInfo
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
        if not stays_inside(folder):  # resuming writes and deletes files there
            problem = f"must be in the folder of the comparison, got '{folder}'"
            remedy = "do not resume a comparison from a source that you do not trust"
            raise RecordError(problem, remedy, field="folder", path=path)
    return record


def score_of(metrics: Mapping[str, float | None], main_metrics: Sequence[str]) -> float | None:
    """The mean of the main metrics that were measured, in percent; ``None`` if there are none, or
    if one is not a number.

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
    """A score out of 100; BLEU, losses and perplexities are unchanged."""
    return 100 * value if value is not None and is_share(metric) else value


def is_share(metric: str) -> bool:
    """Whether a score is a share, shown in percent. BLEU and chrF are numbers up to 100, but not
    percentages; losses and perplexities have scales of their own.
    """
    return not metric.endswith((*_OUT_OF_100, *_OWN_SCALE))


def seconds_of(run: RunRecord) -> float:
    """Duration of the steps of a run, without evaluations and saves."""
    return (run.outcome.timing.get("seconds_per_step") or 0.0) * (
        run.outcome.timing.get("steps") or 0.0
    )


def wall_seconds(run: RunRecord) -> float:
    """Seconds from the start of a run to its end; 0 for one that has not ended."""
    if run.finished is None:
        return 0.0
    return (
        datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)
    ).total_seconds()


class Saved(Protocol):
    """A record that can be saved to a folder."""

    def save(self, folder: Path) -> Any: ...


R = TypeVar("R", bound=Saved)


def recorded(record: Callable[[Status], R], folder: Path, work: Callable[[], object]) -> R:
    """Do the work with its record in the folder: running at first, then finished, or interrupted
    if the user stopped it.
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
