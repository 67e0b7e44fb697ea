"""A comparison as numbers: what the records of its runs come to. All scores are in percent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advreg.lab.report.statistics import Spread
from advreg.records import run as records
from advreg.records.compare import (
    ComparedRun,
    CompareRecord,
    in_percent,
    load,
    score_of,
    seconds_of,
)
from advreg.records.run import RunRecord

STANDARD = "standard"
# what reads as percent; losses and errors do not
_SCORES = ("accuracy", "f1", "matthews", "pearson", "spearman", "bleu", "chrf")

Runs = Mapping[tuple[str, str, int], RunRecord]


@dataclass(frozen=True)
class Cell:
    """A method on a task: each metric and the main score over the seeds that finished.

    Args:
        metrics, main: of the runs that finished.
        asked: how many runs were to be made.
        failed: did one of them fail?
    """

    metrics: Mapping[str, Spread]
    main: Spread | None
    asked: int
    failed: bool


@dataclass(frozen=True)
class Difference:
    """The reference minus a baseline, paired by seed; ``task`` is ``None`` for the average over
    tasks.
    """

    task: str | None
    baseline: str
    spread: Spread | None


@dataclass(frozen=True)
class Cost:
    """What a method took.

    Args:
        method: which.
        seconds: training of one run, mean over tasks and seeds.
        relative: to Standard's run of the same task and seed, averaged over seeds, then over tasks.
        tuning_seconds: of all candidates together.
        relative_with_tuning: all that was trained for it, to all that was trained for Standard.
        candidates: tried per task.
    """

    method: str
    seconds: float | None
    relative: float | None
    tuning_seconds: float
    relative_with_tuning: float | None
    candidates: int


@dataclass(frozen=True)
class Failure:
    """A run, or a candidate of the tuning, that has no result, and why."""

    name: str
    reason: str
    tuning: bool


@dataclass(frozen=True)
class Results:
    """All that the tables show."""

    record: CompareRecord
    methods: Sequence[str]
    tasks: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    averages: Mapping[str, Spread | None]
    differences: Sequence[Difference]
    costs: Sequence[Cost]
    failures: Sequence[Failure]


def read(folder: Path) -> tuple[CompareRecord, dict[tuple[str, str, int], RunRecord]]:
    """A comparison's record and those of its finished runs, by task, method and seed."""
    record = load(folder)
    found = {}
    for entry in record.runs:
        path = folder / entry.folder / "record.json"
        run = records.load(path) if path.is_file() else None
        if run is not None and run.outcome.status == "finished":
            found[entry.task, entry.method, entry.seed] = run
    return record, found


def results(record: CompareRecord, runs: Runs) -> Results:
    """Compute every number of the tables."""
    methods = list(dict.fromkeys(entry.method for entry in record.runs))
    tasks = [task.name for task in record.tasks]
    scores = {
        key: score for key, run in runs.items() if (score := _main(record, key[0], run)) is not None
    }
    by_seed = {method: _averages_by_seed(scores, method, tasks) for method in methods}
    return Results(
        record=record,
        methods=methods,
        tasks=tasks,
        cells={
            (task, method): _cell(record, runs, task, method)
            for task in tasks
            for method in methods
        },
        averages={method: _average(scores, method, tasks, by_seed[method]) for method in methods},
        differences=_differences(record, scores, by_seed, methods, tasks),
        costs=[_cost(record, runs, method) for method in methods],
        failures=_failures(record, runs),
    )


def _main(record: CompareRecord, task: str, run: RunRecord) -> float | None:
    (mine,) = (each for each in record.tasks if each.name == task)
    return score_of(run.outcome.metrics, mine.main_metrics)


def _cell(record: CompareRecord, runs: Runs, task: str, method: str) -> Cell:
    mine = [run for key, run in runs.items() if key[:2] == (task, method)]
    names = dict.fromkeys(name for run in mine for name in run.outcome.metrics if _is_score(name))
    metrics = {}
    for name in names:
        values = [
            value
            for run in mine
            if (value := in_percent(name, run.outcome.metrics.get(name))) is not None
        ]
        spread = Spread.of([value for value in values if math.isfinite(value)])
        if spread is not None:
            metrics[name] = spread
    main = [score for run in mine if (score := _main(record, task, run)) is not None]
    asked = [entry for entry in record.runs if (entry.task, entry.method) == (task, method)]
    return Cell(
        metrics, Spread.of(main), len(asked), any(entry.error is not None for entry in asked)
    )


def _is_score(name: str) -> bool:
    return name.rpartition("_")[2] in _SCORES


def _averages_by_seed(
    scores: Mapping[tuple[str, str, int], float], method: str, tasks: Sequence[str]
) -> dict[int, float]:
    """The mean over tasks, each counting once as in the paper; only for seeds that finished on all
    of them.
    """
    seeds = sorted({seed for _, name, seed in scores if name == method})
    whole = [seed for seed in seeds if all((task, method, seed) in scores for task in tasks)]
    return {seed: statistics.fmean(scores[task, method, seed] for task in tasks) for seed in whole}


def _average(
    scores: Mapping[tuple[str, str, int], float],
    method: str,
    tasks: Sequence[str],
    by_seed: Mapping[int, float],
) -> Spread | None:
    """The mean over tasks of their means over seeds; its deviation is over the seeds that finished
    on all tasks.
    """
    per_task = [
        [score for key, score in scores.items() if key[:2] == (task, method)] for task in tasks
    ]
    if not all(per_task):
        return None
    spread = Spread.of(list(by_seed.values()))
    mean = statistics.fmean(statistics.fmean(values) for values in per_task)
    return Spread(mean, spread.deviation if spread else None, spread.count if spread else 0)


def _differences(
    record: CompareRecord,
    scores: Mapping[tuple[str, str, int], float],
    by_seed: Mapping[str, Mapping[int, float]],
    methods: Sequence[str],
    tasks: Sequence[str],
) -> list[Difference]:
    reference = record.reference
    found = []
    for baseline in methods:
        if baseline == reference:
            continue
        for task in tasks:
            mine, theirs = (
                {
                    seed: score
                    for (name, method, seed), score in scores.items()
                    if (name, method) == (task, wanted)
                }
                for wanted in (reference, baseline)
            )
            found.append(Difference(task, baseline, Spread.paired(mine, theirs)))
        found.append(
            Difference(None, baseline, Spread.paired(by_seed[reference], by_seed[baseline]))
        )
    return found


# ---- time


def _cost(record: CompareRecord, runs: Runs, method: str) -> Cost:
    mine = [seconds_of(run) for key, run in runs.items() if key[1] == method]
    choices = [choice for choice in record.choices if choice.method == method]
    total, standard = _all_seconds(record, runs, method), _all_seconds(record, runs, STANDARD)
    return Cost(
        method=method,
        seconds=statistics.fmean(mine) if mine else None,
        relative=_relative(record, runs, method),
        tuning_seconds=_tuning_seconds(record, method),
        relative_with_tuning=total / standard if total and standard else None,
        candidates=max((len(choice.candidates) for choice in choices), default=0),
    )


def _relative(record: CompareRecord, runs: Runs, method: str) -> float | None:
    per_task = []
    for task in record.tasks:
        ratios = [
            seconds_of(run) / seconds_of(plain)
            for (name, mine, seed), run in runs.items()
            if (name, mine) == (task.name, method)
            and (plain := runs.get((name, STANDARD, seed))) is not None
            and seconds_of(plain) > 0
        ]
        if ratios:
            per_task.append(statistics.fmean(ratios))
    return statistics.fmean(per_task) if per_task else None


def _tuning_seconds(record: CompareRecord, method: str) -> float:
    mine = [choice for choice in record.choices if choice.method == method]
    return sum(candidate.seconds or 0.0 for choice in mine for candidate in choice.candidates)


def _all_seconds(record: CompareRecord, runs: Runs, method: str) -> float | None:
    """Tuning and runs; ``None`` if the method has no run."""
    mine = [seconds_of(run) for key, run in runs.items() if key[1] == method]
    return _tuning_seconds(record, method) + sum(mine) if mine else None


# ---- what went wrong


def _failures(record: CompareRecord, runs: Runs) -> list[Failure]:
    tuned = [
        Failure(candidate.folder, candidate.error, tuning=True)
        for choice in record.choices
        for candidate in choice.candidates
        if candidate.error is not None
    ]
    missing = [
        Failure(entry.folder, _reason(entry), tuning=False)
        for entry in record.runs
        if (entry.task, entry.method, entry.seed) not in runs
    ]
    return tuned + missing


def _reason(entry: ComparedRun) -> str:
    return entry.error or "not finished; the same command goes on with it"
