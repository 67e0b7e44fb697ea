"""Student's t: the mean of a few numbers and its uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


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


def t_quantile(probability: float, freedom: int) -> float:
    """The value that a t-distributed number stays below with this probability, above one half.

    Example:
        >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 30), 4)
        (4.3027, 2.0423)
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(
            f"probability must be in [0.5, 1) and freedom 1 or more, got {probability} and "
            f"{freedom}"
        )
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if share_within(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def share_within(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν · tan θ) for ν degrees of freedom.

    A finite sum in sin θ and cos θ: Abramowitz and Stegun 1964, 26.7.3 (odd ν) and 26.7.4 (even
    ν).
    """
    is_odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if is_odd else 1.0
    total = 0.0 if freedom == 1 else term
    for step in range(2 + is_odd, freedom, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if is_odd else share
