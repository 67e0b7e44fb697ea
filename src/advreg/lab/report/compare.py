"""A contest as numbers: scores, differences, times and failures. All scores are out of 100."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from advreg.lab.report.gather import Run
from advreg.lab.report.grouping import of_comparison
from advreg.lab.report.groups import STANDARD, Contest, RunGroup
from advreg.lab.report.labels import NOT_FINISHED, is_score
from advreg.lab.report.statistics import Spread
from advreg.records import run as records
from advreg.records.compare import Choice, CompareRecord, in_percent, load, seconds_of
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
class Difference:
    """A method minus a baseline, paired by seed; ``task`` is ``None`` for the average over
    tasks.
    """

    task: str | None
    method: str
    baseline: str
    spread: Spread | None


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
class Failure:
    """A run, or a candidate of the tuning, without a result."""

    name: str
    reason: str
    tuning: bool


@dataclass(frozen=True)
class Results:
    """All numbers of the tables; ``methods`` are labels."""

    contest: Contest
    methods: Sequence[str]
    tasks: Sequence[str]
    scores: Scores
    cells: Mapping[tuple[str, str], Cell]
    costs: Sequence[Cost]
    failures: Sequence[Failure]

    @cached_property
    def averages(self) -> dict[str, Spread | None]:
        """The mean over tasks of each label, where all tasks have a score."""
        return {label: _average(self, label) for label in self.methods}

    @cached_property
    def differences(self) -> list[Difference]:
        """Each method minus Standard, or the contest's other reference minus each method, on each
        task and on average.
        """
        reference = self.contest.reference
        others = [label for label in self.methods if label != reference]
        if len(others) == len(self.methods):
            return []
        plain = self.is_from_standard
        pairs = [(other, reference) if plain else (reference, other) for other in others]
        return [
            Difference(task, *pair, self.difference(task, *pair))
            for pair in pairs
            for task in (*self.tasks, None)
        ]

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
    found = {}
    for entry in record.runs:
        path = folder / entry.folder / "record.json"
        run = records.load(path) if path.is_file() else None
        if run is not None and run.outcome.status == "finished":
            found[entry.task, entry.method, entry.seed] = run
    return record, found


def results(record: CompareRecord, runs: Runs) -> Results:
    """The numbers of a comparison and its runs."""
    by_folder = {
        Path(entry.folder): Run(entry.folder, Path(entry.folder), run)
        for entry in record.runs
        if (run := runs.get((entry.task, entry.method, entry.seed))) is not None
    }
    return summary(of_comparison(record, by_folder, Path()))


def summary(contest: Contest) -> Results:
    """The numbers of a contest."""
    tasks, methods = [task.name for task in contest.tasks], list(contest.methods)
    scores = {
        (group.task, group.label): group.scores(contest.task(group.task))
        for group in contest.groups
    }
    cells = {(task, method): Cell({}, None, 0, False) for task in tasks for method in methods}
    for group in contest.groups:
        cells[group.task, group.label] = _cell(group, scores[group.task, group.label])
    return Results(
        contest=contest,
        methods=methods,
        tasks=tasks,
        scores=scores,
        cells=cells,
        costs=[_cost(contest, label) for label in methods],
        failures=_failures(contest),
    )


def _cell(group: RunGroup, scores: Mapping[int, float]) -> Cell:
    values: dict[str, list[float]] = {}
    for record in group.records:
        for name, value in record.outcome.metrics.items():
            score = in_percent(name, value) if is_score(name) else None
            if score is not None and math.isfinite(score):
                values.setdefault(name, []).append(score)
    metrics = {
        name: spread for name, each in values.items() if (spread := Spread.of(each)) is not None
    }
    failed = any(run.reason is not None for run in group.missing.values())
    asked = len(group.runs) + len(group.missing)
    return Cell(metrics, Spread.of(list(scores.values())), asked, failed)


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
    seconds = [seconds_of(run.record) for run in contest.labelled(label)]
    per_task = list(filter(None, (_ratios(contest, task.name, label) for task in contest.tasks)))
    whole, standard = _all_seconds(contest, label), _all_seconds(contest, STANDARD)
    return Cost(
        method=label,
        seconds=statistics.fmean(seconds) if seconds else None,
        relative=statistics.fmean(map(statistics.fmean, per_task)) if per_task else None,
        ratios=[ratio for ratios in per_task for ratio in ratios],
        tuning_seconds=_tuning_seconds(contest, label),
        relative_with_tuning=whole / standard if seconds and standard else None,
        candidates=max((len(each.candidates) for each in _choices(contest, label)), default=0),
    )


def _ratios(contest: Contest, task: str, label: str) -> list[float]:
    """The time of each run of a label on a task relative to Standard's with the same seed."""
    group = next((group for group in contest.on(task) if group.label == label), None)
    standard = contest.standard(group) if group is not None else None
    if group is None or standard is None:
        return []
    both = [seed for seed in group.runs if seed in standard.runs]
    pairs = [[seconds_of(each.runs[seed].record) for each in (group, standard)] for seed in both]
    return [mine / other for mine, other in pairs if other > 0]


def _tuning_seconds(contest: Contest, label: str) -> float:
    tried = [each for choice in _choices(contest, label) for each in choice.candidates]
    return sum(candidate.seconds or 0.0 for candidate in tried)


def _choices(contest: Contest, label: str) -> list[Choice]:
    return [choice for choice in contest.choices if choice.method == label]


def _all_seconds(contest: Contest, label: str) -> float:
    """The time of the tuning and the runs; 0 if the label has no run."""
    seconds = [seconds_of(run.record) for run in contest.labelled(label)]
    return _tuning_seconds(contest, label) + sum(seconds) if seconds else 0.0


def _failures(contest: Contest) -> list[Failure]:
    tuned = [
        Failure(candidate.folder, candidate.error, tuning=True)
        for choice in contest.choices
        for candidate in choice.candidates
        if candidate.error is not None
    ]
    missing = [
        Failure(run.name, run.reason or NOT_FINISHED, tuning=False)
        for group in contest.groups
        for run in group.missing.values()
    ]
    return tuned + missing
