"""Successive halving over tuning seeds: candidates that are clearly behind stop early.

All candidates train with one seed. The better half trains with the same number of further seeds,
and so on, until one is left (Jamieson and Talwalkar 2016). Halving over seeds rather than over the
length of the training keeps the runs of a rung comparable: a regulariser that needs the whole
training to pay is not judged by half of it, and length can be a setting that is tuned. What decides
between the last candidates is the noise of a run, and they have the most seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Rung:
    """One round of the tuning.

    Args:
        candidates: how many take part.
        seeds: the tuning seeds that they train with, counted from 0; none of an earlier rung.
    """

    candidates: int
    seeds: range

    @property
    def runs(self) -> int:
        return self.candidates * len(self.seeds)


def rungs(candidates: int) -> Iterator[Rung]:
    """The rounds that choose one of several candidates.

    Example:
        >>> [(rung.candidates, list(rung.seeds)) for rung in rungs(8)]
        [(8, [0]), (4, [1]), (2, [2, 3])]
    """
    left, seeds = candidates, range(1)
    while left > 1:
        yield Rung(left, seeds)
        left, seeds = math.ceil(left / 2), range(seeds.stop, 2 * seeds.stop)


def ranking(merits: Mapping[int, Sequence[float | None]]) -> list[int]:
    """Candidates by falling mean merit, equals in their order.

    Args:
        merits: of each candidate with each seed so far; none: the run diverged, and its candidate
            ranks last.

    Example:
        >>> ranking({0: [80.0, 82.0], 1: [84.0, 80.0], 2: [90.0, None]})
        [1, 0, 2]
    """
    return sorted(merits, key=lambda candidate: -_mean(merits[candidate]))


def _mean(scores: Sequence[float | None]) -> float:
    finite = [score for score in scores if score is not None]
    return fmean(finite) if finite and len(finite) == len(scores) else -math.inf
