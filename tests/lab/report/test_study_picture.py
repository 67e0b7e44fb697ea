from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from advreg.lab.drawing import PictureError
from advreg.lab.report.study import findings
from advreg.lab.report.study_picture import _draw_panel, draw_study
from studies import study_record

RECORD = study_record([70.0, 71.0, 72.0], [60.0, 64.0, 68.0], [80.0, 81.0, 82.0])


def drawn() -> Any:
    found = findings(RECORD)
    axis = Figure().subplots()
    _draw_panel(axis, "T_c", found.panels[0][1], found.baselines)
    return axis


def test_dots_and_bars_are_the_means_and_deviations_of_the_record() -> None:
    (bars,) = drawn().containers
    line, _, (segments,) = bars
    assert list(line.get_xdata()) == [0, 1]
    assert list(line.get_ydata()) == pytest.approx([71.0, 64.0])
    spans = [sorted(part[:, 1].tolist()) for part in segments.get_segments()]
    assert spans == [pytest.approx([70.0, 72.0]), pytest.approx([60.0, 68.0])]


def test_smart_is_a_dashed_line_at_its_mean_and_the_default_is_ringed() -> None:
    axis = drawn()
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["SMART"].get_ydata()) == pytest.approx([81.0, 81.0])
    assert lines["SMART"].get_linestyle() == "--"
    (ring,) = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([0], [71.0])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["15", "once"]


def test_standard_is_dotted() -> None:
    from dataclasses import replace

    found = findings(RECORD)
    axis = Figure().subplots()
    _draw_panel(axis, "T_c", [], [replace(found.baselines[0], method="standard", label="Standard")])
    assert [line.get_linestyle() for line in axis.lines] == [":"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_written_and_is_the_same_every_time(tmp_path: Path, suffix: str) -> None:
    one, two = tmp_path / f"a.{suffix}", tmp_path / "new" / f"b.{suffix}"
    for path in (one, two):
        draw_study(findings(RECORD), path)
    assert one.read_bytes() == two.read_bytes()
    if suffix == "svg":
        text = one.read_text(encoding="utf-8")
        for part in (
            "T_c, epochs",
            "once",
            "SMART",
            "accuracy on dev",
            "ARCH on RTE, tiny",
            "mean ± sd over 3 seeds",
        ):
            assert part in text


def test_the_picture_of_an_unfinished_study_says_how_many_runs_it_shows(tmp_path: Path) -> None:
    draw_study(findings(study_record([0.5, None], [0.6, 0.7], [0.7, 0.8])), tmp_path / "a.svg")
    assert "mean ± sd over 2 seeds (5 of 6 runs)" in (tmp_path / "a.svg").read_text(
        encoding="utf-8"
    )


def test_a_study_of_which_nothing_finished_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show: no run has finished"):
        draw_study(findings(study_record([None], [None], [1.0])), tmp_path / "a.svg")
