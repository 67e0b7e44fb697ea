"""What a comparison says of each method: it pays, it does not, or that is undecided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from advreg.lab.search.sequential import Look, Looks

Verdict = Literal["pays", "does not pay", "undecided"]

SHARE_OF_DEVIATION = 1 / 3
"""Gains below this share of the reference's deviation over seeds are of no interest."""
MOST_SEEDS = 500
"""No larger number of seeds is suggested."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one method's gain over the reference.

    Args:
        looks: at the gain; none with fewer than two seeds.
        margin: the largest gain that is of no interest.
        flaw: why the method cannot pay, such as a run that diverged.
    """

    looks: Looks | None
    margin: float = 0.0
    flaw: str | None = None


def verdicts(found: Mapping[str, Evidence], level: float) -> dict[str, Verdict]:
    """The verdict on each method.

    * *pays*: the gain is above 0, at an error rate of ``level`` for all methods together (Holm
      1979);
    * *does not pay*: the same for a loss, or the interval of the gain ends below the margin;
    * *undecided*: neither.
    """
    different = holm(found, level)
    return {name: _verdict(each, name in different, level) for name, each in found.items()}


def _verdict(found: Evidence, different: bool, level: float) -> Verdict:
    if found.looks is None:
        return "undecided"
    gain = found.looks.looks[-1].mean
    if different and gain > 0:
        return "undecided" if found.flaw else "pays"
    interval = found.looks.interval(level)
    below = interval is not None and interval[1] < found.margin
    return "does not pay" if different or below else "undecided"


def holm(found: Mapping[str, Evidence], level: float) -> set[str]:
    """The methods whose gain differs from 0, by Holm's procedure over all methods: each remaining
    method is tested at the level divided by their number, until none is found.
    """
    left = {name: each.looks for name, each in found.items()}
    different: set[str] = set()
    while left:
        each = level / len(left)
        new = {name for name, looks in left.items() if looks is not None and looks.differs(each)}
        if not new:
            break
        different |= new
        left = {name: looks for name, looks in left.items() if name not in new}
    return different


def more_seeds(look: Look, half_width: float, level: float) -> int | None:
    """How many more seeds would give an interval of this half width, if the differences keep
    varying like this; none where no number of seeds would, since the test set is too small.

    Example:
        >>> more_seeds(Look(seeds=5, mean=0.2, deviation=1.0), 0.5, 0.05)
        13
    """
    for seeds in range(look.seeds + 1, MOST_SEEDS):
        if Look(seeds, look.mean, look.deviation, look.sampling).reach(level) <= half_width:
            return seeds - look.seeds
    return None
