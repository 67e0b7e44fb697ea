"""Student's t distribution."""

from __future__ import annotations

import math
from functools import lru_cache

_MOST_FREEDOM = 1000  # beyond, t is normal to three digits


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
    return _critical(2 * (1 - probability), freedom)


def t_critical(p: float, freedom: float) -> float:
    """The t whose two-sided p value is ``p``. Degrees of freedom are rounded down, which makes it
    larger.

    Example:
        >>> round(t_critical(0.05, 2.9), 4)
        4.3027
    """
    return _critical(p, int(min(freedom, _MOST_FREEDOM)))


@lru_cache(maxsize=4096)
def _critical(p: float, freedom: int) -> float:
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if share_within(middle, freedom) < 1 - p:
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
