"""How far a gain depends on the samples of the test set: a bootstrap over them, seeds fixed.

The same draws are taken for all runs on a test set, so that differences between runs are paired by
sample. A score is a function of the samples that were drawn, so any metric will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, np.dtype[np.float64]]
Score = Callable[[Rows], float]
"""The score of a run on the rows of the test set with these numbers; one may be there twice."""

DRAWS = 400
"""Draws of a bootstrap; they give a standard error to 3.5 %."""


def resampled(score: Score, size: int, draws: int = DRAWS, seed: int = 0) -> Array:
    """The score of one run in each draw of ``size`` samples with replacement.

    Example:
        >>> right = np.array([1.0, 0.0, 1.0, 1.0])
        >>> resampled(lambda rows: right[rows].mean(), size=4, draws=3).shape
        (3,)
    """
    random = np.random.default_rng([seed, size])
    return np.array([score(random.integers(size, size=size)) for _ in range(draws)])


def sampling_error(mine: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The standard error that the choice of test samples gives to a mean gain over seeds.

    Args:
        mine, theirs: for each seed the scores in the draws, of both sides in the same order.
    """
    gains = np.mean([one - other for one, other in zip(mine, theirs, strict=True)], axis=0)
    return float(gains.std(ddof=1))
