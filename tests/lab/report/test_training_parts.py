from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from advreg.lab.report.figures import Rows
from report_runs import FOUR, lines_titled, parts_of, reported


def test_curves_of_scores_are_named_for_the_metric_whatever_the_set(tmp_path: Path) -> None:
    assert (
        lines_titled(reported(tmp_path, FOUR)["training"], "Accuracy while training").y
        == "accuracy"
    )


def test_the_variance_of_the_gradient_norm_is_that_of_each_seed(tmp_path: Path) -> None:
    found = reported(tmp_path, FOUR)["gradients"]
    (bars,) = parts_of(found, Rows)
    for row, method in zip(bars.rows, ("standard", "arch"), strict=True):
        mine = [record for record in FOUR if record.method.name == method]
        variances = [
            statistics.variance(
                line["grad_norm"] for line in record.outcome.history if "grad_norm" in line
            )
            for record in mine
        ]
        assert list(row.dots) == pytest.approx(variances, rel=1e-4)
        assert row.value == pytest.approx(statistics.fmean(variances))
