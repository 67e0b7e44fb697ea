"""What a verdict rests on: paired gains, Holm's correction, and the rules that PLAN.md fixed before
the first run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.stats import t as student

from advreg.lab.report.statistics import Spread

PAYS, DOES_NOT, UNDECIDED = "pays", "does not pay", "undecided"
LEVEL = 0.05
SHARE_OF_DEVIATION = 1 / 3
FREE_TIME = 1.1  # times Standard's time a step
TWICE_TIME = 2.2  # the longest step, over Standard's, for which twice the epochs are equal compute
SHARE_TO_REPLACE = 3 / 4

BySeed = Mapping[int, float]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Gain:
    """The mean of differences that are paired by seed, its 95 % interval, and the two-sided p value
    of a mean of 0.
    """

    spread: Spread
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, gains: BySeed) -> Gain | None:
        """``None`` with fewer than two seeds."""
        spread = Spread.of([gains[seed] for seed in sorted(gains)])
        interval = None if spread is None else spread.interval()
        if spread is None or interval is None:
            return None
        return cls(spread, *interval, p_value(spread))

    @property
    def mean(self) -> float:
        return self.spread.mean


def differences(mine: BySeed, theirs: BySeed, share: float = 1.0) -> dict[int, float]:
    """mine − share · theirs, for the seeds of both."""
    return {seed: mine[seed] - share * theirs[seed] for seed in sorted(mine) if seed in theirs}


def p_value(spread: Spread) -> float:
    """2 · P(T > |mean| √n / s), T of Student's distribution of n − 1 degrees of freedom."""
    if not spread.deviation:
        return float(spread.mean == 0)
    statistic = abs(spread.mean) * math.sqrt(spread.count) / spread.deviation
    return float(2 * student.sf(statistic, spread.count - 1))


def holm(values: Mapping[Name, float], tests: int | None = None) -> dict[Name, float]:
    """p values corrected by Holm's procedure (1979): the i-th smallest of m times m − i + 1, never
    falling, at most 1.

    Args:
        values: p values by name.
        tests: how many tests there are in all; those without a p value yet count as 1, so that a
            corrected value can only fall when they arrive.

    Example:
        >>> {name: round(p, 3) for name, p in holm({"a": 0.04, "b": 0.01, "c": 0.03}).items()}
        {'b': 0.03, 'c': 0.06, 'a': 0.06}
    """
    count = len(values) if tests is None else tests
    found: dict[Name, float] = {}
    most = 0.0
    for place, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        most = max(most, min(1.0, (count - place) * p))
        found[name] = most
    return found


def verdict(gain: Gain, corrected: float, deviation: float, diverged: int = 0) -> str:
    """What a method's gain over Standard says.

    Args:
        gain: over tuned Standard at equal epochs.
        corrected: its p value after Holm's correction.
        deviation: Standard's over seeds.
        diverged: runs that have no gain; with any of them a method cannot pay.
    """
    if pays(gain, corrected):
        return UNDECIDED if diverged else PAYS
    return DOES_NOT if gain.high < SHARE_OF_DEVIATION * deviation else UNDECIDED


def pays(gain: Gain, corrected: float) -> bool:
    return gain.low > 0 and corrected < LEVEL


def pays_for_price(
    found: str, time: float | None, over_twice: tuple[Gain, float] | None
) -> bool | None:
    """Whether a method that pays is worth its time; ``None`` where the contest cannot tell.

    Args:
        found: its verdict.
        time: a step's, over Standard's, if it is known.
        over_twice: the gain over Standard with twice the epochs and its corrected p value, where
            there is that control.
    """
    if found != PAYS:
        return False
    if time is not None and time <= FREE_TIME:
        return True
    if over_twice is None:
        return None
    beats_twice = pays(*over_twice)
    is_longer = time is None or time > TWICE_TIME  # so the control had less time
    return None if beats_twice and is_longer else beats_twice


def replaces(one_pass: BySeed, other: BySeed) -> Gain | None:
    """The one-pass method's gain minus ¾ of the other's; it replaces the other if the interval is
    above 0.
    """
    return Gain.of(differences(one_pass, other, SHARE_TO_REPLACE))
