from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from advreg.lab.report.curves import curve
from comparisons import run_record


def test_a_curve_is_mean_and_range_over_seeds_and_the_variance_of_each() -> None:
    norms = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 8.0]])
    found = curve(
        [run_record("arch", seed, {}, norms=list(line)) for seed, line in enumerate(norms)]
    )
    assert list(found.places) == [1, 2, 3]
    assert list(found.mean) == list(norms.mean(0))
    assert (list(found.low), list(found.high)) == (list(norms.min(0)), list(norms.max(0)))
    assert list(found.variances) == pytest.approx(list(norms.var(1, ddof=1)))


def test_a_settled_variance_is_that_of_what_came_after_the_warm_up() -> None:
    norms = [9.0, 5.0, 1.0, 2.0, 4.0]
    run = run_record("arch", 0, {}, norms=norms)
    run.training.more["warmup_steps"] = 2
    found = curve([run], settled=True)
    assert list(found.mean) == norms
    assert list(found.variances) == pytest.approx([np.var(norms[2:], ddof=1)])
    run.training.more["warmup_steps"] = 4  # one is left
    assert curve([run], settled=True).variances == []


def test_lines_without_a_finite_norm_are_left_out() -> None:
    norms: Any = [1.0, None, 3.0]
    found = curve([run_record("arch", 0, {}, norms=norms)])
    assert (list(found.places), list(found.mean)) == ([1, 3], [1.0, 3.0])
    assert curve([run_record("arch", 0, {})]).places == []
