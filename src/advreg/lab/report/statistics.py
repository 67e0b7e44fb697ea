"""Student's t: the mean of a few numbers and how far it can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TINY = 1e-300
_MOST_TERMS = 500


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (none of a single value) and number of some values."""

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
        """Of the differences of values with the same seed; ``None`` if there are none.

        Example:
            >>> Spread.paired({0: 3.0, 1: 5.0}, {1: 4.0, 2: 9.0})
            Spread(mean=1.0, deviation=None, count=1)
        """
        return cls.of([mine[seed] - theirs[seed] for seed in sorted(mine) if seed in theirs])

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Where the mean of all that could have been drawn lies, if they are normal; ``None`` for a
        single value.

        mean ± t · s / √n, with the quantile t of Student's distribution of n − 1 degrees of
        freedom.
        """
        if self.deviation is None:
            return None
        reach = (
            t_quantile(0.5 + confidence / 2, self.count - 1)
            * self.deviation
            / math.sqrt(self.count)
        )
        return self.mean - reach, self.mean + reach


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
    low, high = 0.0, 1.0
    while _above_half(high, freedom) < probability - 0.5:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (
            (middle, high) if _above_half(middle, freedom) < probability - 0.5 else (low, middle)
        )
    return (low + high) / 2


def _above_half(value: float, freedom: int) -> float:
    """P(T ≤ value) − 1/2 for value ≥ 0: I_y(1/2, ν/2) / 2 with y = value² / (ν + value²)."""
    square = value * value
    return incomplete_beta(square / (freedom + square), 0.5, freedom / 2) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the mirrored function converges faster
        return 1 - incomplete_beta(1 - x, b, a)
    scale = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(scale) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d₁/(1 + d₂/(1 + …))) by Lentz's method."""
    above, below = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    found = below
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            below = 1 / _away_from_zero(1 + term * below)
            above = _away_from_zero(1 + term / above)
            change = above * below
            found *= change
        if abs(change - 1) < 1e-15:
            break
    return found


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
