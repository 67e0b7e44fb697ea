"""Runs that belong together, whether a comparison, a study or the user made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from advreg.lab.kinds.registry import Scale, scale_of
from advreg.lab.report.gather import Run
from advreg.records.compare import Choice, ComparedTask, CompareRecord, score_of, seconds_of
from advreg.records.run import RunRecord
from advreg.records.study import StudyRecord

STANDARD = "standard"


T = TypeVar("T")
K = TypeVar("K")


def split_by(key: Callable[[T], K], items: Iterable[T]) -> dict[K, list[T]]:
    """Items with the same key together, in the order of the first of each.

    Example:
        >>> split_by(len, ["a", "bb", "c"])
        {1: ['a', 'c'], 2: ['bb']}
    """
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass(frozen=True)
class Planned:
    """A run that was asked for, and its record if it has one; without an error, one that has no
    record has not ended.
    """

    task: str
    label: str
    method: str
    seed: int
    name: str
    run: Run | None = None
    error: str | None = None


@dataclass(frozen=True)
class RunGroup:
    """The runs on one task with one method and the same settings.

    Args:
        task: its name.
        label: the method, with the options that distinguish its settings from others.
        method: its name.
        runs: the finished ones, by seed.
        missing: the others, by seed.
    """

    task: str
    label: str
    method: str
    runs: dict[int, Run] = field(default_factory=dict)
    missing: dict[int, Planned] = field(default_factory=dict)

    @property
    def records(self) -> list[RunRecord]:
        return [run.record for run in self.runs.values()]

    @property
    def epochs(self) -> set[float]:
        """The lengths of its runs."""
        return {record.training.epochs for record in self.records}

    @property
    def seconds(self) -> dict[int, float]:
        """The time of the training steps of each run, by seed."""
        return {seed: seconds_of(run.record) for seed, run in self.runs.items()}

    def scores(self, task: ComparedTask) -> dict[int, float]:
        """The main score of each run out of 100, by seed; without those that are not a number."""
        found = {
            seed: score_of(run.record.outcome.metrics, task.main_metrics)
            for seed, run in self.runs.items()
        }
        return {seed: score for seed, score in found.items() if score is not None}


def grouped(planned: Iterable[Planned]) -> list[RunGroup]:
    """A group for each task and label, in the order of their first runs."""
    together = split_by(lambda each: (each.task, each.label), planned)
    return [_group(each) for each in together.values()]


def _group(planned: Sequence[Planned]) -> RunGroup:
    first = planned[0]
    group = RunGroup(first.task, first.label, first.method)
    for each in planned:
        if each.run is not None and each.run.is_finished:
            group.runs[each.seed] = each.run
        else:
            group.missing[each.seed] = each
    return group


@dataclass(frozen=True)
class Contest:
    """Groups that are compared with each other.

    Args:
        title: of its part of a section.
        terms: what all groups share, for captions.
        tasks: in the order of tables.
        groups: in the order of tables.
        reference: the label whose differences from the others are shown.
        notes: caveats for the reader.
        choices: the tuning, in a comparison.
        compared: the record of a comparison.
        study: what was varied, in a study.
    """

    title: str
    terms: str
    tasks: Sequence[ComparedTask]
    groups: Sequence[RunGroup]
    reference: str
    notes: Sequence[str] = ()
    choices: Sequence[Choice] = ()
    compared: CompareRecord | None = None
    study: StudyRecord | None = None

    @property
    def methods(self) -> dict[str, str]:
        """The method of each label."""
        return {group.label: group.method for group in self.groups}

    @property
    def runs(self) -> list[Run]:
        """All finished runs."""
        return [run for group in self.groups for run in group.runs.values()]

    @property
    def seeds(self) -> set[int]:
        """The seeds that were asked for."""
        return {seed for group in self.groups for seed in (*group.runs, *group.missing)}

    @property
    def scale(self) -> Scale:
        """The scale of the scores and their mean over tasks."""
        return scale_of([name for task in self.tasks for name in task.main_metrics])

    @property
    def has_variants(self) -> bool:
        """Whether a method takes part with several settings."""
        return len(set(self.methods.values())) < len(self.methods)

    def standard(self, group: RunGroup) -> RunGroup | None:
        """The runs of Standard to compare a group with: preferably of the same length."""
        known = [each for each in self.on(group.task) if each.method == STANDARD]
        return min(known, key=lambda each: each.epochs != group.epochs, default=None)

    def tuning(self, label: str) -> list[Choice]:
        """How the settings of a label were chosen, for each task."""
        return [choice for choice in self.choices if choice.method == label]

    def task(self, name: str) -> ComparedTask:
        """A task by its name."""
        return next(task for task in self.tasks if task.name == name)

    def on(self, task: str) -> list[RunGroup]:
        """The groups on a task that have a finished run."""
        return [group for group in self.groups if group.task == task and group.runs]

    def labelled(self, label: str) -> list[Run]:
        """The finished runs with a label, on all tasks."""
        return [run for group in self.groups if group.label == label for run in group.runs.values()]
