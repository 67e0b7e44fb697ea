from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advreg.lab.drawing import PictureError
from advreg.lab.report.curves import curve, draw_norms
from comparisons import run_record


def words(path: Path) -> str:
    """The text of an svg, whose letters matplotlib keeps as comments."""
    return "\n".join(
        line.strip(" <!->")
        for line in path.read_text().splitlines()
        if line.strip().startswith("<!--")
    )


def test_a_curve_is_mean_and_range_over_seeds_and_the_variance_of_each() -> None:
    norms = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 8.0]])
    found = curve(
        "arch", [run_record("arch", seed, {}, norms=list(line)) for seed, line in enumerate(norms)]
    )
    assert found is not None
    assert list(found.places) == [1, 2, 3]
    assert list(found.mean) == list(norms.mean(0))
    assert (list(found.low), list(found.high)) == (list(norms.min(0)), list(norms.max(0)))
    assert list(found.variances) == pytest.approx(list(norms.var(1, ddof=1)))


def test_a_settled_variance_is_that_of_what_came_after_the_warm_up(tmp_path: Path) -> None:
    norms = [9.0, 5.0, 1.0, 2.0, 4.0]
    run = run_record("arch", 0, {}, norms=norms)
    run.training.more["warmup_steps"] = 2
    found = curve("arch", [run], settled=True)
    assert found is not None
    assert list(found.mean) == norms
    assert list(found.variances) == pytest.approx([np.var(norms[2:], ddof=1)])
    run.training.more["warmup_steps"] = 4  # one is left
    assert curve("arch", [run], settled=True).variances == []  # type: ignore[union-attr]
    draw_norms({("a", "arch", 0): run}, tmp_path / "norms.svg", {}, settled=True)
    assert "variance after warm-up;" in words(tmp_path / "norms.svg").splitlines()


def test_lines_without_a_finite_norm_are_left_out() -> None:
    norms: Any = [1.0, None, 3.0]
    found = curve("arch", [run_record("arch", 0, {}, norms=norms)])
    assert found is not None
    assert (list(found.places), list(found.mean)) == ([1, 3], [1.0, 3.0])
    assert curve("arch", [run_record("arch", 0, {})]) is None


def test_the_picture_names_tasks_methods_and_axes(tmp_path: Path) -> None:
    runs = {
        (task, method, seed): run_record(method, seed, {}, norms=[1.0 + seed, 2.0, 3.0])
        for task in ("rte", "mrpc")
        for method in ("standard", "arch")
        for seed in (0, 1)
    }
    draw_norms(runs, tmp_path / "deep" / "norms.svg", {"rte": "RTE", "mrpc": "MRPC"})
    shown = words(tmp_path / "deep" / "norms.svg").splitlines()
    for text in ("RTE", "MRPC", "standard", "arch", "step"):
        assert text in shown
    assert "epoch" not in shown


def test_runs_of_different_lengths_are_drawn_over_epochs(tmp_path: Path) -> None:
    short, long = (
        run_record("standard", 0, {}, norms=[1.0, 2.0]),
        run_record("arch", 0, {}, norms=[1.0, 2.0, 3.0]),
    )
    long.outcome.timing["steps"] = 20.0
    draw_norms({("a", "standard", 0): short, ("a", "arch", 0): long}, tmp_path / "norms.svg", {})
    assert "epoch" in words(tmp_path / "norms.svg").splitlines()


def test_a_picture_that_cannot_be_drawn_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        PictureError, match="nothing to show: no finished run has logged a gradient norm"
    ):
        draw_norms({("a", "arch", 0): run_record("arch", 0, {})}, tmp_path / "norms.svg", {})
    with pytest.raises(
        PictureError, match=r"picture must end in .svg, .png, .pdf, got 'norms.gif'"
    ):
        draw_norms({}, Path("norms.gif"), {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PictureError, match=r"pip install 'advreg\[plot\]'"):
        draw_norms({}, tmp_path / "norms.svg", {})
