"""Tests that stay valid when seeds are added until a verdict is reached.

A comparison looks at its results after n of at most N seeds. By then it may have spent the part
α(n / N) of its error rate (Lan and DeMets 1983, the function of O'Brien–Fleming type), and each
look tests at what has become free since the one before. By the union bound the error rate holds
however the looks depend on each other: through shared seeds, through an estimated deviation, or
through a test set that is the same for all. A look that is the last for reasons that have nothing
to do with the results, such as the end of a budget, spends the rest.

Looks are few and grow (3, 5, 8, 13, 20 seeds), so that the bound costs little: with 20 seeds at
most, these tests find a gain of one deviation of the differences in 98 % of the cases and half a
deviation in 53 %. One test at 20 seeds finds 99 % and 57 %; a confidence sequence (normal mixture
over t, valid at every seed and without N) finds 85 % and 20 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, stdev

from advreg.lab.student import t_critical

GROWTH = 1.6
"""Seeds at a look over those at the look before."""
_MOST_RATIO = 100.0  # of the error to the part of it that seeds have; beyond, t is normal


def spent(fraction: float, level: float) -> float:
    """How much of a two-sided error rate may be used by then: on each side 2 − 2 Φ(z / √fraction),
    z the quantile of 1 − level / 4.

    Example:
        >>> round(spent(0.5, 0.05), 4), round(spent(1.0, 0.05), 4)
        (0.0031, 0.05)
    """
    return 2 * math.erfc(-NormalDist().inv_cdf(level / 4) / math.sqrt(2 * fraction))


def look_sizes(first: int, most: int) -> Iterator[int]:
    """The numbers of seeds at which a comparison looks.

    Example:
        >>> list(look_sizes(3, 20)), list(look_sizes(5, 20)), list(look_sizes(4, 4))
        ([3, 5, 8, 13, 20], [5, 8, 13, 20], [4])
    """
    size = first
    while size < most:
        yield size
        size = max(size + 1, round(GROWTH * size))
    yield most


@dataclass(frozen=True)
class Look:
    """The estimate of a gain at one look: differences that are paired by seed, on one test set.

    Args:
        seeds: how many differences there are.
        mean: of the differences.
        deviation: their standard deviation.
        sampling: the standard error that comes from the choice of test samples, which no further
            seed reduces; 0 if it is not known.
    """

    seeds: int
    mean: float
    deviation: float
    sampling: float = 0.0

    @classmethod
    def of(cls, differences: Sequence[float], sampling: float = 0.0) -> Look | None:
        """None with fewer than two seeds.

        Example:
            >>> Look.of([1.0, 2.0, 3.0])
            Look(seeds=3, mean=2.0, deviation=1.0, sampling=0.0)
        """
        if len(differences) < 2:
            return None
        return cls(len(differences), fmean(differences), stdev(differences), sampling)

    @property
    def error(self) -> float:
        """√(s² / n + e²), the standard error of the mean: s the deviation over n seeds, e the
        sampling error. What seeds and samples do together is counted in both, so that the error is
        rather too large.
        """
        return math.hypot(self.deviation / math.sqrt(self.seeds), self.sampling)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the error, (n − 1) (error² / (s² / n))² by Welch and Satterthwaite:
        the sampling error rests on many samples.
        """
        seeds_alone = self.deviation / math.sqrt(self.seeds)
        if seeds_alone <= self.error / _MOST_RATIO:
            return math.inf
        return (self.seeds - 1) * (self.error / seeds_alone) ** 4

    def differs(self, level: float) -> bool:
        """Whether the interval that misses the gain at this rate is without 0."""
        return self.error > 0 and abs(self.mean) >= self.reach(level)

    def reach(self, level: float) -> float:
        """Half the width of the interval that misses the gain at this rate."""
        return self.error * t_critical(level, self.freedom)


@dataclass(frozen=True)
class Looks:
    """All looks at one gain, in order.

    Args:
        looks: at least one.
        most_seeds: how many seeds there will be at most.
        ended: no look follows, for a reason that has nothing to do with the gain.
    """

    looks: Sequence[Look]
    most_seeds: int
    ended: bool = False

    def levels(self, level: float) -> list[float]:
        """What each look may spend; their sum is at most ``level``.

        Example:
            >>> looks = [Look(seeds, mean=1.0, deviation=1.0) for seeds in (5, 10)]
            >>> [round(each, 4) for each in Looks(looks, 20, ended=True).levels(0.05)]
            [0.0, 0.05]
        """
        fractions = [min(1.0, look.seeds / self.most_seeds) for look in self.looks]
        if self.ended:
            fractions[-1] = 1.0
        used = [0.0, *(spent(fraction, level) for fraction in fractions)]
        return [after - before for before, after in pairwise(used)]

    def differs(self, level: float) -> bool:
        """Whether the gain differed from 0 at any look, at this error rate of all looks."""
        levels = self.levels(level)
        return any(look.differs(each) for look, each in zip(self.looks, levels, strict=True))

    def interval(self, level: float) -> tuple[float, float] | None:
        """The interval at the last look; the intervals of all looks together miss the gain at this
        rate at most (Jennison and Turnbull 1989). None where the error is not known.
        """
        last = self.looks[-1]
        if last.error <= 0:
            return None
        reach = last.reach(self.levels(level)[-1])
        return last.mean - reach, last.mean + reach
