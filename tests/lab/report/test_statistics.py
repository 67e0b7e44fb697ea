from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.report.statistics import Spread


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=10))
def test_the_interval_is_that_of_scipys_test_of_one_sample(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert (spread.mean, spread.count) == (pytest.approx(np.mean(values), abs=1e-9), len(values))
    assert spread.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-9)
    interval = spread.interval()
    if spread.deviation == 0:
        assert interval == (spread.mean, spread.mean)
        assert spread.shown_interval() is None
    else:
        expected = stats.t.interval(
            0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
        )
        assert interval == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_one_value_has_neither_deviation_nor_interval_and_none_no_spread() -> None:
    one = Spread.of([3.0])
    assert one == Spread(3.0, None, 1)
    assert one.interval() is None
    assert Spread.of([]) is None
