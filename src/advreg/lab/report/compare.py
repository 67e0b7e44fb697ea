"""A contest as numbers: scores, differences, times and failures. All scores are out of 100."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from advreg.lab.kinds.registry import Scale, scale_of
from advreg.lab.report.gather import Run
from advreg.lab.report.grouping import of_comparison
from advreg.lab.report.groups import STANDARD, Contest, RunGroup
from advreg.lab.report.labels import is_score
from advreg.lab.report.statistics import Spread, mean_of
from advreg.records import run as records
from advreg.records.compare import CompareRecord, in_percent, load, seconds_of
from advreg.records.run import RunRecord

Runs = Mapping[tuple[str, str, int], RunRecord]
Scores = Mapping[tuple[str, str], Mapping[int, float]]  # by task and label, then by seed


@dataclass(frozen=True)
class Cell:
    """A method on a task: each metric and the main score over the seeds that finished.

    Args:
        metrics, main: of the runs that finished.
        asked: the number of runs that were asked for.
        failed: whether one of them failed.
    """

    metrics: Mapping[str, Spread]
    main: Spread | None
    asked: int
    failed: bool


@dataclass(frozen=True)
class Cost:
    """The time of a method.

    Args:
        method: its label.
        seconds: training of one run, mean over tasks and seeds.
        relative: to Standard's run of the same task and seed, averaged over seeds, then over tasks.
        ratios: those times, run by run.
        tuning_seconds: of all candidates together.
        relative_with_tuning: all training for it, relative to all training for Standard.
        candidates: tried per task.
    """

    method: str
    seconds: float | None
    relative: float | None
    ratios: Sequence[float]
    tuning_seconds: float
    relative_with_tuning: float | None
    candidates: int


@dataclass(frozen=True)
class Results:
    """The numbers of a contest: ``scores`` and ``cells`` by task and label."""

    contest: Contest
    scores: Scores
    cells: Mapping[tuple[str, str], Cell]

    @property
    def methods(self) -> list[str]:
        """All labels."""
        return list(self.contest.methods)

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks."""
        return [task.name for task in self.contest.tasks]

    @cached_property
    def costs(self) -> list[Cost]:
        """The time of each label."""
        return [_cost(self.contest, label) for label in self.methods]

    @property
    def missing(self) -> dict[str, str | None]:
        """The runs without a result, and why; ``None`` for those that have not ended."""
        missing = [run for group in self.contest.groups for run in group.missing.values()]
        return {run.name: run.error for run in missing}

    @property
    def averaged(self) -> list[str | None]:
        """The tasks, and ``None`` for their average if there are several."""
        return [*self.tasks, *([None] if len(self.tasks) > 1 else [])]

    @property
    def baselines(self) -> list[str]:
        """The labels that the reference is compared with."""
        reference = self.contest.reference
        others = [label for label in self.methods if label != reference]
        return others if reference in self.methods else []

    def scale(self, task: str | None) -> Scale:
        """How the scores on a task, or their averages, are shown and ranked."""
        return (
            self.contest.scale if task is None else scale_of(self.contest.task(task).main_metrics)
        )

    def score(self, task: str | None, label: str) -> Spread | None:
        """The main score on a task; on average over tasks if ``task`` is ``None``."""
        return _average(self, label) if task is None else self.cells[task, label].main

    @property
    def is_from_standard(self) -> bool:
        """Whether differences are from Standard; records of old comparisons have another
        reference.
        """
        return self.contest.methods.get(self.contest.reference) == STANDARD

    def difference(self, task: str | None, method: str, baseline: str) -> Spread | None:
        """A method minus a baseline, paired by seed; on average over tasks if ``task`` is
        ``None``.
        """
        mine, theirs = (self.by_seed(task, label) for label in (method, baseline))
        return Spread.paired(mine, theirs)

    def by_seed(self, task: str | None, label: str) -> Mapping[int, float]:
        """Scores on a task; or the mean over tasks, each counting once as in the paper, for the
        seeds that finished on all of them.
        """
        if task is not None:
            return self.scores.get((task, label), {})
        columns = [self.scores.get((name, label), {}) for name in self.tasks]
        seeds = sorted(set(columns[0]).intersection(*columns[1:]))
        return {seed: statistics.fmean(column[seed] for column in columns) for seed in seeds}


def read(folder: Path) -> tuple[CompareRecord, dict[tuple[str, str, int], RunRecord]]:
    """A comparison's record and the records of its finished runs, by task, method and seed."""
    record = load(folder)
    paths = {
        (entry.task, entry.method, entry.seed): folder / entry.folder / "record.json"
        for entry in record.runs
    }
    found = {key: records.load(path) for key, path in paths.items() if path.is_file()}
    return record, {key: run for key, run in found.items() if run.outcome.status == "finished"}


def results(record: CompareRecord, runs: Runs) -> Results:
    """The numbers of a comparison and its runs."""
    by_folder = {
        Path(entry.folder): Run(Path(entry.folder), run, name=entry.folder)
        for entry in record.runs
        if (run := runs.get((entry.task, entry.method, entry.seed))) is not None
    }
    return summary(of_comparison(record, by_folder, Path()))


def summary(contest: Contest) -> Results:
    """The numbers of a contest."""
    scores, empty = {}, Cell({}, None, 0, False)
    cells = {(task.name, label): empty for task in contest.tasks for label in contest.methods}
    for group in contest.groups:
        key = group.task, group.label
        scores[key] = group.scores(contest.task(group.task))
        cells[key] = _cell(group, scores[key])
    return Results(contest, scores, cells)


def _cell(group: RunGroup, scores: Mapping[int, float]) -> Cell:
    names = dict.fromkeys(name for record in group.records for name in record.outcome.metrics)
    spreads = {name: _metric(group, name) for name in names if is_score(name)}
    return Cell(
        metrics={name: spread for name, spread in spreads.items() if spread is not None},
        main=Spread.of(list(scores.values())),
        asked=len(group.runs) + len(group.missing),
        failed=any(run.error is not None for run in group.missing.values()),
    )


def _metric(group: RunGroup, name: str) -> Spread | None:
    """A metric over the runs that have a finite value for it."""
    values = [record.outcome.metrics.get(name) for record in group.records]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Spread.of([score for value in known if (score := in_percent(name, value)) is not None])


def _average(found: Results, label: str) -> Spread | None:
    """The mean over tasks of their means over seeds; its deviation is over the seeds that finished
    on all tasks.
    """
    cells = [found.cells[task, label].main for task in found.tasks]
    means = [cell.mean for cell in cells if cell is not None]
    if len(means) < len(found.tasks):
        return None
    spread = Spread.of(list(found.by_seed(None, label).values()))
    mean = statistics.fmean(means)
    return Spread(mean, spread.deviation, spread.count) if spread else Spread(mean, None, 0)


# ---- time


def _cost(contest: Contest, label: str) -> Cost:
    groups = [group for group in contest.groups if group.label == label]
    ratios = list(filter(None, (_ratios(contest, group) for group in groups)))
    whole, standard = _all_seconds(contest, label), _all_seconds(contest, STANDARD)
    return Cost(
        method=label,
        seconds=mean_of(seconds for group in groups for seconds in group.seconds.values()),
        relative=mean_of(map(statistics.fmean, ratios)),
        ratios=list(chain(*ratios)),
        tuning_seconds=_tuning_seconds(contest, label),
        relative_with_tuning=whole / standard if whole and standard else None,
        candidates=max((len(each.candidates) for each in contest.tuning(label)), default=0),
    )


def _ratios(contest: Contest, group: RunGroup) -> list[float]:
    """The time of each run of a group relative to Standard's with the same seed."""
    standard = contest.standard(group)
    theirs = {} if standard is None else standard.seconds
    return [
        mine / theirs[seed] for seed, mine in group.seconds.items() if theirs.get(seed, 0.0) > 0
    ]


def _tuning_seconds(contest: Contest, label: str) -> float:
    tried = [each for choice in contest.tuning(label) for each in choice.candidates]
    return sum(candidate.seconds or 0.0 for candidate in tried)


def _all_seconds(contest: Contest, label: str) -> float:
    """The time of the tuning and the runs; 0 if the label has no run."""
    seconds = [seconds_of(run.record) for run in contest.labelled(label)]
    return _tuning_seconds(contest, label) + sum(seconds) if seconds else 0.0
