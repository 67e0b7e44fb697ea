"""Student's t distribution, by the continued fraction of the incomplete beta function."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_MOST_TERMS = 500
_MOST_FREEDOM = 10_000.0  # beyond, t is normal to six digits, and the fraction converges slowly


def t_quantile(probability: float, freedom: float) -> float:
    """The value that a t-distributed number stays below with this probability, at least one half.

    Example:
        >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 30), 4)
        (4.3027, 2.0423)
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(
            f"probability must be in [0.5, 1) and freedom 1 or more, got {probability} and "
            f"{freedom}"
        )
    return t_critical(2 * (1 - probability), freedom)


@lru_cache(maxsize=4096)
def t_critical(p: float, freedom: float) -> float:
    """The t whose two-sided p value is ``p``; the inverse of :func:`p_value`."""
    low, high = 0.0, 1.0
    while p_value(high, freedom) > p:
        low, high = high, 2 * high
    middle = (low + high) / 2
    while low < middle < high:
        low, high = (middle, high) if p_value(middle, freedom) > p else (low, middle)
        middle = (low + high) / 2
    return middle


def p_value(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) = I_x(ν/2, 1/2) with x = ν / (ν + t²), ν degrees of freedom.

    Example:
        >>> round(p_value(2.0423, 30), 4)
        0.05
    """
    freedom = min(freedom, _MOST_FREEDOM)
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


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
