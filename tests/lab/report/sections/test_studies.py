from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from advreg.lab.drawing import PictureError
from advreg.lab.report.pictures.figures import DASHED, Lines, Rows
from advreg.lab.report.sections.studies import draw_study
from advreg.lab.report.study import findings
from advreg.lab.report.tables import Table
from report_runs import made_up, parts_of, save, sections_of
from studies import study_record


def test_a_study_that_was_asked_for_has_its_own_panels_points_and_titles(tmp_path: Path) -> None:
    record = study_record([70.0, 72.0], [60.0, None], [80.0, 80.0])
    task = replace(
        record.task,
        name="multi30k-en-de",
        title="multi30k",
        main_metrics=["bleu"],
        scored_on="test",
    )
    replace(record, task=task).save(tmp_path)
    for name, scores in (("default", [70.0, 72.0]), ("refresh_every=none", [60.0])):
        for seed, score in enumerate(scores):
            options = {"refresh_every": None if "none" in name else 15}
            run = made_up("arch", seed, settings=options, metrics={"bleu": score}, task="multi30k")
            save(tmp_path / "arch" / name / f"seed-{seed}", run)
    found = sections_of(tmp_path)
    (figure,) = parts_of(found["studies"], Lines)
    assert (figure.title, figure.x, figure.y) == (
        "refresh: ARCH on Multi30k En-De",
        "T_c, epochs",
        "sacreBLEU on test",
    )
    assert list(figure.ticks) == ["15*", "once"]
    series, level = figure.marks
    assert (list(series.x), list(series.y)) == ([0.0, 1.0], [71.0, 60.0])
    assert series.high[0] - series.y[0] == pytest.approx(statistics.stdev([70.0, 72.0]), rel=1e-4)
    assert (level.look.label, level.value, level.look.dash) == ("SMART", 80.0, DASHED)
    (sheet,) = parts_of(found["studies"], Table)
    assert [row[:2] for row in sheet.texts] == [
        ["15 (default)", "71.0 ± 1.4"],
        ["once", "60.0 (1 of 2)"],
        ["SMART", "80.0 ± 0.0"],
    ]
    (scores_of_all,) = parts_of(found["scores"], Rows)
    assert (scores_of_all.title, scores_of_all.x) == ("Multi30k En-De", "sacreBLEU on test")
    assert [row.look.label for row in scores_of_all.marks] == ["ARCH", "ARCH, refresh_every none"]
    assert ["NonFiniteLossError: nan"] in [
        row[2:] for row in parts_of(found["failed"], Table)[0].texts
    ]


def test_a_panel_without_a_result_is_a_table_of_failures(tmp_path: Path) -> None:
    study_record([None], [None], [80.0]).save(tmp_path)
    save(tmp_path / "smart" / "default" / "seed-0", made_up("smart"))
    found = sections_of(tmp_path)["studies"]
    assert parts_of(found, Lines) == []
    assert [row[1] for row in parts_of(found, Table)[0].texts] == ["failed", "failed", "80.0"]


def test_the_picture_has_the_panels_and_marks_the_default(tmp_path: Path) -> None:
    record = study_record([70.0, 71.0, 72.0], [60.0, 64.0, 68.0], [80.0, 81.0, 82.0])
    for name in ("a.svg", "new/b.svg"):
        draw_study(findings(record), tmp_path / name)
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "new" / "b.svg").read_text(encoding="utf-8")
    for text in (
        *("T_c, epochs", "15*", "once", "SMART", "accuracy on dev", "ARCH on RTE, tiny"),
        "mean ± sd over 3 seeds; *: default settings",
    ):
        assert text in drawn


def test_the_picture_of_an_unfinished_study_says_how_many_runs_it_shows(tmp_path: Path) -> None:
    draw_study(findings(study_record([0.5, None], [0.6, 0.7], [0.7, 0.8])), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "mean ± sd over 2 seeds (5 of 6 runs)" in drawn


def test_a_study_without_a_finished_run_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        draw_study(findings(study_record([None], [None], [1.0])), tmp_path / "a.svg")
