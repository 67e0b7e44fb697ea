from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.student import share_within, t_critical, t_quantile


@given(st.floats(0.51, 0.9995), st.integers(1, 200))  # nearer to one half scipy itself is inexact
def test_the_quantile_is_that_of_scipy(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(
        stats.t.ppf(probability, freedom), rel=1e-8, abs=1e-8
    )


@given(st.floats(0, 1.57), st.integers(1, 200))
def test_the_share_within_an_angle_is_that_of_scipy(angle: float, freedom: int) -> None:
    value = math.sqrt(freedom) * math.tan(angle)
    expected = stats.t.cdf(value, freedom) - stats.t.cdf(-value, freedom)
    assert share_within(angle, freedom) == pytest.approx(expected, abs=1e-9)


@given(st.floats(1e-9, 0.9), st.integers(1, 200), st.floats(0, 0.99))
def test_the_critical_value_is_scipys_with_the_freedom_rounded_down(
    p: float, freedom: int, more: float
) -> None:
    assert t_critical(p, freedom + more) == pytest.approx(stats.t.isf(p / 2, freedom), rel=1e-5)


def test_with_endless_freedom_t_is_normal() -> None:
    assert t_critical(0.05, math.inf) == pytest.approx(stats.norm.isf(0.025), rel=2e-3)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_an_error(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match=f"got {probability} and {freedom}"):
        t_quantile(probability, freedom)
