from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.search.sequential import Look, Looks, look_sizes, spent

LEVEL = 0.05


def look(values: np.ndarray, sampling: float = 0.0) -> Look:
    found = Look.of(values.tolist(), sampling)
    assert found is not None
    return found


def until_decided(
    draws: np.ndarray, most: int, level: float = LEVEL, budget: int | None = None
) -> Looks:
    """A comparison that stops at the first look that differs, or when a budget of seeds ends."""
    seen: list[Look] = []
    sizes = [size for size in look_sizes(3, most) if budget is None or size <= budget]
    for size in sizes:
        seen.append(look(draws[:size]))
        looks = Looks(seen, most, ended=size == sizes[-1])
        if looks.differs(level):
            break
    return looks


@given(st.floats(0.05, 1.0), st.floats(0.001, 0.2))
def test_spending_is_lan_and_demets_function_on_each_side(fraction: float, level: float) -> None:
    side = 2 * stats.norm.sf(stats.norm.isf(level / 4) / math.sqrt(fraction))
    assert spent(fraction, level) == pytest.approx(2 * side, rel=1e-9)


@given(st.integers(2, 20), st.integers(0, 40))
def test_looks_grow_to_the_last_seed(first: int, more: int) -> None:
    sizes = list(look_sizes(first, first + more))
    assert sizes[0] == first
    assert sizes[-1] == first + more
    assert sizes == sorted(set(sizes))


@given(st.integers(3, 10), st.integers(0, 20), st.booleans(), st.floats(0.001, 0.2))
def test_all_looks_together_spend_the_level_at_most(
    first: int, more: int, ended: bool, level: float
) -> None:
    most = first + more
    sizes = list(look_sizes(first, most))
    for count in range(1, len(sizes) + 1):
        looks = Looks([Look(size, 0.0, 1.0) for size in sizes[:count]], most, ended)
        levels = looks.levels(level)
        whole = ended or count == len(sizes)
        assert all(each >= 0 for each in levels)
        assert sum(levels) == pytest.approx(
            level if whole else spent(sizes[count - 1] / most, level)
        )


@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=12))
def test_one_look_is_the_t_test_of_scipy(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    looks = Looks([look(array)], len(values))
    if array.std() < 1e-9:
        return
    expected = stats.ttest_1samp(array, 0)
    assert looks.differs(LEVEL) == (expected.pvalue <= LEVEL)
    assert looks.interval(LEVEL) == pytest.approx(tuple(expected.confidence_interval()), rel=1e-6)


def test_without_an_error_nothing_is_decided() -> None:
    same = Looks([Look(3, 1.0, 0.0)], 3)
    assert not same.differs(LEVEL)
    assert same.interval(LEVEL) is None


def comparisons(gain: float, count: int, seed: int) -> Iterator[Looks]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield until_decided(random.normal(gain, 1.0, 20), 20)


def decided(
    draws: np.ndarray, most: int = 20, sampling: float = 0.0, budget: int | None = None
) -> np.ndarray:
    """Whether each comparison, a row of draws, found a difference at any look: the rule of
    :meth:`Looks.differs` for all rows at once, with the quantiles of scipy.
    """
    sizes = [size for size in look_sizes(3, most) if budget is None or size <= budget]
    looks = Looks([Look(size, 0.0, 1.0) for size in sizes], most, ended=True)
    found = np.zeros(len(draws), dtype=bool)
    for size, level in zip(sizes, looks.levels(LEVEL), strict=True):
        seen = draws[:, :size]
        seeds_alone = seen.std(axis=1, ddof=1) / math.sqrt(size)
        error = np.hypot(seeds_alone, sampling)
        freedom = (size - 1) * (error / seeds_alone) ** 4
        found |= np.abs(seen.mean(axis=1)) >= error * stats.t.isf(level / 2, freedom)
    return found


@pytest.mark.parametrize(("sampling", "budget"), [(0.0, None), (0.0, 8), (0.5, None)])
def test_the_rule_for_all_rows_is_the_rule(sampling: float, budget: int | None) -> None:
    draws = np.random.default_rng(5).normal(0.6, 1.0, (60, 20))
    sizes = [size for size in look_sizes(3, 20) if budget is None or size <= budget]
    one_by_one = [
        Looks([look(row[:size], sampling) for size in sizes], 20, ended=True).differs(LEVEL)
        for row in draws
    ]
    assert decided(draws, 20, sampling, budget).tolist() == one_by_one


COMPARISONS = 100_000  # a standard error of 0.07 points of a rate of 5 %


def bound(found: np.ndarray) -> float:
    """Three standard errors above the rate that was found."""
    rate = float(found.mean())
    return rate + 3 * math.sqrt(rate * (1 - rate) / len(found))


@pytest.mark.parametrize("most", [3, 5, 8, 20])
def test_without_an_effect_a_comparison_errs_in_5_percent_of_the_cases_at_most(most: int) -> None:
    found = decided(np.random.default_rng(0).normal(0.0, 1.0, (COMPARISONS, most)), most)
    assert found.mean() > 0.035
    assert bound(found) < 0.0525


@pytest.mark.parametrize(("gain", "power"), [(0.5, 0.53), (1.0, 0.98)])
def test_intervals_cover_a_gain_at_which_the_comparison_stopped(gain: float, power: float) -> None:
    ends = list(comparisons(gain, 800, seed=1))
    intervals = [looks.interval(LEVEL) for looks in ends]
    assert np.mean([low <= gain <= high for low, high in intervals]) > 0.935
    assert np.mean([looks.differs(LEVEL) for looks in ends]) == pytest.approx(power, abs=0.04)
    assert np.mean([looks.looks[-1].seeds for looks in ends]) < 20


def test_a_budget_that_ends_early_spends_what_is_left() -> None:
    found = decided(np.random.default_rng(2).normal(0, 1, (COMPARISONS, 20)), 20, budget=8)
    assert found.mean() > 0.035
    assert bound(found) < 0.0525


def test_a_test_set_that_all_seeds_share_does_not_raise_the_error_rate() -> None:
    """The mean over seeds has an error of the test set that no seed removes; both errors are known
    to the look.
    """
    random, shared = np.random.default_rng(3), 0.5
    draws = random.normal(0, 1, (COMPARISONS, 20)) + random.normal(0, shared, (COMPARISONS, 1))
    assert bound(decided(draws, 20, sampling=shared)) < 0.0525


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=9), st.floats(0.001, 3))
def test_an_interval_is_never_below_the_error_of_the_test_set(
    values: list[float], sampling: float
) -> None:
    looks = Looks([look(np.array(values), sampling)], len(values))
    interval = looks.interval(LEVEL)
    if interval is not None:
        assert interval[1] - interval[0] >= 2 * 1.9599 * sampling * (1 - 1e-6)


def test_one_seed_is_no_look() -> None:
    assert Look.of([1.0]) is None
