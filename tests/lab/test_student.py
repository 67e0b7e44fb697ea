from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from advreg.lab.student import incomplete_beta, p_value, t_critical, t_quantile


@given(st.floats(0.51, 0.9995), st.integers(1, 200))  # nearer to one half scipy itself is inexact
def test_the_quantile_is_that_of_scipy(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(
        stats.t.ppf(probability, freedom), rel=1e-8, abs=1e-8
    )


@given(
    st.floats(0, 1 - 1e-12), st.floats(0.5, 50), st.floats(0.5, 50)
)  # nearer to one scipy is wrong, see below
def test_the_incomplete_beta_function_is_that_of_scipy(x: float, a: float, b: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)


def test_next_to_one_the_incomplete_beta_function_is_the_arcsine_law() -> None:
    x = 1 - 2**-53
    assert incomplete_beta(x, 0.5, 0.5) == pytest.approx(
        1 - 2 / math.pi * math.asin(math.sqrt(1 - x)), abs=1e-15
    )
    assert incomplete_beta(1.0, 0.5, 0.5) == 1


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_an_error(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match=f"got {probability} and {freedom}"):
        t_quantile(probability, freedom)


@given(st.floats(0.05, 40), st.floats(1, 200))
def test_the_p_value_is_that_of_scipy_far_into_the_tail(t: float, freedom: float) -> None:
    assert p_value(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-8)


def test_with_endless_freedom_t_is_normal() -> None:
    assert p_value(1.96, 1e12) == pytest.approx(2 * stats.norm.sf(1.96), rel=1e-3)


@given(st.floats(1e-12, 0.9), st.floats(1, 200))
def test_the_critical_value_inverts_the_p_value(p: float, freedom: float) -> None:
    assert p_value(t_critical(p, freedom), freedom) == pytest.approx(p, rel=1e-6)
