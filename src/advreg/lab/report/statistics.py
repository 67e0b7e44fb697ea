"""Student's t: the mean of a few numbers and its uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from advreg.lab.student import t_quantile


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (``None`` for a single value) and number of some values."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """``None`` if there are no values.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0])
            Spread(mean=2.0, deviation=1.0, count=3)
        """
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    @classmethod
    def paired(cls, mine: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
        """The differences of values with the same seed; ``None`` if there are none.

        Example:
            >>> Spread.paired({0: 3.0, 1: 5.0}, {1: 4.0, 2: 9.0})
            Spread(mean=1.0, deviation=None, count=1)
        """
        return cls.of([mine[seed] - theirs[seed] for seed in sorted(mine) if seed in theirs])

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The confidence interval of the mean for normal values.

        mean ± t · s / √n, with the quantile t of Student's distribution with n − 1 degrees of
        freedom. ``None`` for a single value.
        """
        if self.deviation is None:
            return None
        quantile = t_quantile(0.5 + confidence / 2, self.count - 1)
        reach = quantile * self.deviation / math.sqrt(self.count)
        return self.mean - reach, self.mean + reach

    def shown_interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The interval to show; ``None`` for values that are all equal.

        They do not show how much others would differ: an interval of no width would look certain.
        """
        return self.interval(confidence) if self.deviation else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; ``None`` if there are none.

    Example:
        >>> mean_of([1.0, None, 2.0]), mean_of([None])
        (1.5, None)
    """
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
