from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from advreg.lab.kinds.classification.metrics import METRICS
from advreg.lab.search.resampling import Score, resampled, sampling_error
from advreg.lab.search.sequential import Look, Looks

SEEDS = 4


def runs(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (N,), and predictions of two methods with each seed (SEEDS, N)."""
    random = np.random.default_rng(seed)
    labels = random.integers(2, size=size)
    easy = random.uniform(0.5, 1.0, size)
    sides = [
        np.where(random.random((SEEDS, size)) < easy + bonus, labels, 1 - labels)
        for bonus in (0.1, 0.0)
    ]
    return labels, sides[0], sides[1]


def score(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Score:
    return lambda rows: METRICS[metric](predictions[rows], labels[rows])


@pytest.mark.parametrize("metric", ["accuracy", "matthews", "f1"])
def test_the_error_is_that_of_a_plain_bootstrap_over_rows(metric: str) -> None:
    labels, mine, theirs = runs(120, seed=0)
    found = sampling_error(
        *(
            [resampled(score(metric, one, labels), 120, draws=2000, seed=3) for one in side]
            for side in (mine, theirs)
        )
    )
    random = np.random.default_rng(99)  # other draws than those of the function
    gains = []
    for _ in range(2000):
        rows = random.integers(120, size=120)
        gains.append(
            fmean(METRICS[metric](one[rows], labels[rows]) for one in mine)
            - fmean(METRICS[metric](one[rows], labels[rows]) for one in theirs)
        )
    assert found == pytest.approx(np.std(gains), rel=0.08)


def test_for_a_mean_over_samples_the_error_is_the_formula() -> None:
    labels, mine, theirs = runs(400, seed=1)
    found = sampling_error(
        *(
            [resampled(score("accuracy", one, labels), 400, draws=4000) for one in side]
            for side in (mine, theirs)
        )
    )
    by_sample = ((mine == labels).mean(0) - (theirs == labels).mean(0)).std(ddof=1)
    assert found == pytest.approx(by_sample / math.sqrt(400), rel=0.05)


def test_draws_are_the_same_for_all_runs_on_a_test_set() -> None:
    def mean(rows: np.ndarray) -> float:
        return float(rows.mean())

    assert (resampled(mean, 50, draws=5) == resampled(mean, 50, draws=5)).all()
    assert (resampled(mean, 50, draws=5, seed=1) != resampled(mean, 50, draws=5)).any()


def test_intervals_cover_the_gain_on_all_samples_that_could_have_been_drawn() -> None:
    """Small test sets, so that a t interval over seeds alone covers far too little."""
    truth, covered, seeds_alone = 0.1, [], []
    for trial in range(150):
        random = np.random.default_rng(trial)
        size = 60
        by_sample = random.normal(truth, 1.0, size)  # how much each sample gains, over all seeds
        gains = by_sample + random.normal(0, 0.5, (SEEDS, size))
        differences = gains.mean(1)
        draws = [
            resampled(lambda rows, one=one: one[rows].mean(), size, draws=200) for one in gains
        ]  # type: ignore[misc]
        error = sampling_error(draws, [np.zeros(200)] * SEEDS)
        for sampling, found in ((error, covered), (0.0, seeds_alone)):
            look = Look.of(differences.tolist(), sampling)
            assert look is not None
            interval = Looks([look], SEEDS).interval(0.05)
            assert interval is not None
            found.append(interval[0] <= truth <= interval[1])
    assert fmean(covered) > 0.92
    assert fmean(seeds_alone) < 0.8
