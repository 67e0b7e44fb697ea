from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from advreg.lab.report.figures import DASHED, DOTTED, Lines, Rows
from advreg.lab.report.render import Sheet
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import save_as
from report_runs import made_up, parts_of, reported, save, sections_of
from studies import study_record


def test_a_study_has_error_bars_over_seeds_smart_dashed_and_standard_dotted(tmp_path: Path) -> None:
    records = [made_up("arch", seed, 0.5 + radius + seed / 10, settings={"radius": radius})
               for radius in (0.01, 0.3) for seed in (0, 1)]  # fmt: skip
    records += [made_up("smart", 0, 0.9), made_up("standard", 0, 0.4)]
    (figure,) = parts_of(reported(tmp_path, records)["studies"], Lines)
    assert figure.title == "reviews: radius of ARCH"
    assert figure.reach == "bars"
    assert figure.logarithmic
    (series,) = figure.series
    assert list(series.x) == [0.01, 0.3]
    assert list(series.y) == pytest.approx([56.0, 85.0])
    spread = statistics.stdev([80.0, 90.0])
    assert series.high[1] - series.y[1] == pytest.approx(spread, rel=1e-4)
    assert [(level.look.label, level.y, level.look.dash) for level in figure.levels] == [
        ("SMART", pytest.approx(90.0), DASHED),
        ("Standard", pytest.approx(40.0), DOTTED),
    ]


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
    assert list(figure.ticks) == ["15", "once"]
    (series,) = figure.series
    assert (list(series.x), list(series.y)) == ([0.0, 1.0], [71.0, 60.0])
    assert series.high[0] - series.y[0] == pytest.approx(statistics.stdev([70.0, 72.0]), rel=1e-4)
    assert [(level.look.label, level.y, level.look.dash) for level in figure.levels] == [
        ("SMART", 80.0, DASHED)
    ]
    (sheet,) = parts_of(found["studies"], Sheet)
    assert [row[:2] for row in sheet.rows] == [
        ["15 (default)", "71.0 ± 1.4"],
        ["once", "60.0 (1 of 2)"],
        ["SMART", "80.0 ± 0.0"],
    ]
    (scores_of_all,) = parts_of(found["scores"], Rows)
    assert (scores_of_all.title, scores_of_all.x) == ("Multi30k En-De", "sacreBLEU on test")
    assert [row.look.label for row in scores_of_all.rows] == ["ARCH", "ARCH, refresh_every none"]
    assert ["NonFiniteLossError: nan"] in [
        row[3:] for row in parts_of(found["failed"], Sheet)[0].rows
    ]


def test_a_panel_without_a_result_is_a_table_of_failures(tmp_path: Path) -> None:
    study_record([None], [None], [80.0]).save(tmp_path)
    save(tmp_path / "smart" / "default" / "seed-0", made_up("smart"))
    found = sections_of(tmp_path)["studies"]
    assert parts_of(found, Lines) == []
    assert [row[1] for row in parts_of(found, Sheet)[0].rows] == ["failed", "failed", "80.0"]


def test_an_option_of_words_has_them_as_ticks(tmp_path: Path) -> None:
    records = [
        made_up("arch", 0, settings={"neighbour_choice": choice})
        for choice in ("random", "nearest")
    ]
    (figure,) = parts_of(reported(tmp_path, records)["studies"], Lines)
    assert (list(figure.ticks), list(figure.series[0].x)) == (["nearest", "random"], [0.0, 1.0])
    assert not figure.logarithmic


def test_probing_is_violins_by_task(tmp_path: Path) -> None:
    results = [
        ProbeResult(
            encoder=f"x/{label}",
            label=label,
            trained_on="sst2",
            task="rte",
            scores=scores,
            metrics=[],
        )
        for label, scores in (("arch", [60.0, 62.0, 61.0]), ("standard", [50.0, 50.0]))
    ]
    record = ProbeRecord(
        settings={}, commit=None, environment={}, started="", finished="", results=results
    )
    save_as(tmp_path / "probe.json", record)
    found = sections_of(tmp_path)["probing"]
    (sheet,) = parts_of(found, Sheet)
    assert sheet.rows == [["ARCH", "61.0 ± 1.0"], ["Standard", "50.0 ± 0.0"]]
    assert "after training on sst2" in sheet.caption
    (picture,) = parts_of(found, Rows)
    assert [(row.value, bool(row.violin)) for row in picture.rows] == [(61.0, True), (50.0, False)]
