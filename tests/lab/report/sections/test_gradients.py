from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from advreg.lab.drawing import PictureError
from advreg.lab.report.pictures.figures import Rows
from advreg.lab.report.sections.gradients import draw_norms
from comparisons import run_record
from report_runs import FOUR, parts_of, reported


def test_the_variance_of_the_gradient_norm_is_that_of_each_seed(tmp_path: Path) -> None:
    found = reported(tmp_path, FOUR)["gradients"]
    (bars,) = parts_of(found, Rows)
    for row, method in zip(bars.marks, ("standard", "arch"), strict=True):
        mine = [record for record in FOUR if record.method.name == method]
        variances = [
            statistics.variance(
                line["grad_norm"] for line in record.outcome.history if "grad_norm" in line
            )
            for record in mine
        ]
        assert list(row.dots) == pytest.approx(variances, rel=1e-4)
        assert row.value == pytest.approx(statistics.fmean(variances))


def test_the_picture_names_tasks_methods_and_axes(tmp_path: Path) -> None:
    runs = {
        (task, method, seed): run_record(method, seed, {}, norms=[1.0 + seed, 2.0, 3.0])
        for task in ("rte", "mrpc")
        for method in ("standard", "arch")
        for seed in (0, 1)
    }
    draw_norms(runs, tmp_path / "deep" / "norms.svg", {"rte": "RTE", "mrpc": "MRPC"})
    drawn = (tmp_path / "deep" / "norms.svg").read_text(encoding="utf-8")
    for text in ("RTE: gradient norm", "MRPC: norm variance", "Standard", "ARCH", ">step<"):
        assert text in drawn
    assert ">epoch<" not in drawn
    draw_norms(runs, tmp_path / "norms.svg", {}, settled=True)
    assert "variance after warm-up" in (tmp_path / "norms.svg").read_text(encoding="utf-8")


def test_runs_of_different_lengths_are_drawn_over_epochs(tmp_path: Path) -> None:
    short = run_record("standard", 0, {}, norms=[1.0, 2.0])
    long = run_record("arch", 0, {}, norms=[1.0, 2.0, 3.0])
    long.outcome.timing["steps"] = 20.0
    draw_norms({("a", "standard", 0): short, ("a", "arch", 0): long}, tmp_path / "norms.svg", {})
    assert ">epoch<" in (tmp_path / "norms.svg").read_text(encoding="utf-8")


def test_runs_without_a_norm_have_no_picture(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        draw_norms({("a", "arch", 0): run_record("arch", 0, {})}, tmp_path / "norms.svg", {})
