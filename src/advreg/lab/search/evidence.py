"""From scores by seed to what a method gains over the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from advreg.lab.search.resampling import Array, sampling_error
from advreg.lab.search.sequential import Look
from advreg.lab.search.verdicts import SHARE_OF_DEVIATION


@dataclass(frozen=True)
class RunOutcome:
    """What came out of one run.

    Args:
        score: the main score; none: the run failed.
        seconds: duration of its training.
        error: why it failed.
        lost: it failed because of the machine, which says nothing about the method.
        draws: its score in each resample of the test set, if the samples' outcomes are known.
        lower_is_better: whether a lower score is better.
    """

    score: float | None = None
    seconds: float = 0.0
    error: str | None = None
    lost: bool = False
    draws: Array | None = None
    lower_is_better: bool = False

    @property
    def merit(self) -> float | None:
        """The score, or minus the score where lower is better: a higher merit is better."""
        return -self.score if self.score is not None and self.lower_is_better else self.score


ByTask = Mapping[str, Mapping[int, RunOutcome]]
"""Outcomes of one method: by task and seed."""


def pairs(mine: ByTask, theirs: ByTask) -> list[int]:
    """The seeds with a score of both sides on every task."""
    found = [
        {seed for seed, outcome in side.get(task, {}).items() if outcome.score is not None}
        for task in theirs
        for side in (mine, theirs)
    ]
    return sorted(set.intersection(*found)) if found else []


def means(side: ByTask, tasks: Sequence[str], seeds: Sequence[int]) -> list[float]:
    """The mean merit over the tasks with each seed."""
    return [fmean(side[task][seed].merit or 0.0 for task in tasks) for seed in seeds]


def look(mine: ByTask, theirs: ByTask) -> Look | None:
    """The gain over the other side, the mean over all tasks; none with fewer than two pairs."""
    tasks, seeds = list(theirs), pairs(mine, theirs)
    scores = [means(side, tasks, seeds) for side in (mine, theirs)]
    differences = [one - other for one, other in zip(*scores, strict=True)]
    return Look.of(differences, _sampling(mine, theirs, seeds) or 0.0)


def sampling(mine: ByTask, theirs: ByTask) -> float | None:
    """The sampling error of the gain; none if the outcomes of samples are not known."""
    return _sampling(mine, theirs, pairs(mine, theirs))


def _sampling(mine: ByTask, theirs: ByTask, seeds: Sequence[int]) -> float | None:
    """√Σ eₜ² / T over T tasks, whose test sets are independent."""
    errors = []
    for task in theirs:
        draws = [[side[task][seed].draws for seed in seeds] for side in (mine, theirs)]
        known = [[each for each in side if each is not None] for side in draws]
        if not seeds or any(len(side) < len(seeds) for side in known):
            return None
        errors.append(sampling_error(*known))
    return math.hypot(*errors) / len(errors)


def margin(reference: ByTask) -> float:
    """The largest gain that is of no interest: a third of the reference's deviation over seeds."""
    seeds = pairs(reference, reference)
    if len(seeds) < 2:
        return 0.0
    return SHARE_OF_DEVIATION * stdev(means(reference, list(reference), seeds))


def relative_time(mine: ByTask, theirs: ByTask) -> float | None:
    """Duration of a training over the other side's: the median over pairs."""
    ratios = [
        mine[task][seed].seconds / theirs[task][seed].seconds
        for task in theirs
        for seed in pairs(mine, theirs)
        if theirs[task][seed].seconds > 0
    ]
    return median(ratios) if ratios else None


def flaw(mine: ByTask) -> str | None:
    """The first failed run, with which a method cannot pay."""
    failed = [
        f"seed {seed} of {task} {'is missing' if outcome.lost else 'failed'}: {outcome.error}"
        for task, outcomes in mine.items()
        for seed, outcome in outcomes.items()
        if outcome.error is not None
    ]
    return failed[0] if failed else None
