from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.search.sequential import Look, Looks, look_sizes
from advreg.lab.search.verdicts import Evidence, Verdict, holm, more_seeds, verdicts

LEVEL = 0.05


def evidence(*gains: float, margin: float = 0.0, flaw: str | None = None) -> Evidence:
    """One look at gains by seed."""
    look = Look.of(gains)
    return Evidence(None if look is None else Looks([look], len(gains)), margin, flaw)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (evidence(2.0, 2.2, 1.8, 2.1), "pays"),
        (evidence(-2.0, -2.2, -1.8, -2.1), "does not pay"),
        (evidence(0.1, -0.1, 0.1, -0.1, margin=0.5), "does not pay"),
        (evidence(0.1, -0.1, 0.1, -0.1, margin=0.05), "undecided"),
        (evidence(3.0, -1.0, 2.0, 0.0), "undecided"),
        (evidence(2.0, 2.2, 1.8, 2.1, flaw="seed 3 diverged"), "undecided"),
        (evidence(1.0), "undecided"),  # one seed
        (evidence(1.0, 1.0), "undecided"),  # no deviation, so no error
    ],
)
def test_a_verdict_follows_the_interval(found: Evidence, verdict: Verdict) -> None:
    assert verdicts({"method": found}, LEVEL) == {"method": verdict}


@given(st.lists(st.floats(0.05, 6), min_size=1, max_size=6))
def test_holms_procedure_is_the_one_on_sorted_p_values(gains: list[float]) -> None:
    names = {f"method {number}": gain for number, gain in enumerate(gains)}
    found = {name: Evidence(Looks([Look(5, gain, 2.0)], 5)) for name, gain in names.items()}
    p_values = {name: 2 * stats.t.sf(gain / 2.0 * math.sqrt(5), 4) for name, gain in names.items()}
    expected = set()
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > LEVEL / (len(names) - place):
            break
        expected.add(name)
    assert holm(found, LEVEL) == expected


def test_methods_without_a_look_count_among_those_that_are_tested() -> None:
    gains = (2.0, 1.0, 1.6, 0.8, 1.9)
    p = stats.ttest_1samp(gains, 0).pvalue
    looks = evidence(*gains)
    assert LEVEL / 20 < p < LEVEL
    assert holm({"r3f": looks}, LEVEL) == {"r3f"}
    others = {f"method {number}": Evidence(None) for number in range(19)}
    assert holm({"r3f": looks, **others}, LEVEL) == set()


def test_without_any_effect_5_percent_of_comparisons_of_four_methods_find_one() -> None:
    """The methods share the seeds of Standard, so their gains are correlated; seeds are added until
    all is decided.
    """
    random = np.random.default_rng(0)
    wrong = []
    for _ in range(500):
        standard, methods = random.normal(size=20), random.normal(size=(4, 20))
        seen: dict[int, list[Look]] = {number: [] for number in range(4)}
        open_methods = set(seen)
        for size in look_sizes(3, 20):
            for number in open_methods:
                look = Look.of((methods[number] - standard)[:size].tolist())
                assert look is not None
                seen[number].append(look)
            found = {str(number): Evidence(Looks(looks, 20)) for number, looks in seen.items()}
            told = verdicts(found, LEVEL)
            open_methods = {number for number in seen if told[str(number)] == "undecided"}
            if not open_methods:
                break
        wrong.append(bool(holm(found, LEVEL)))
    assert np.mean(wrong) < 0.07


@given(st.integers(2, 20), st.floats(0.2, 3.0), st.floats(0.0, 0.2), st.floats(0.5, 2.0))
def test_the_number_of_seeds_is_the_least_that_gives_the_width(
    seeds: int, deviation: float, sampling: float, half_width: float
) -> None:
    look = Look(seeds, 0.0, deviation, sampling)
    more = more_seeds(look, half_width, LEVEL)
    assert more is not None
    enough = Look(seeds + more, 0.0, deviation, sampling)
    assert enough.reach(LEVEL) <= half_width
    if more > 1:
        assert Look(seeds + more - 1, 0.0, deviation, sampling).reach(LEVEL) > half_width


def test_no_number_of_seeds_makes_up_for_a_small_test_set() -> None:
    assert more_seeds(Look(5, 0.3, 1.0, sampling=2.0), 0.5, LEVEL) is None
