from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from advreg.recipes.probe_record import ProbeRecord, ProbeResult
from advreg.record import save_as
from advreg.report.figures import DASHED, DOTTED, Lines, Rows
from advreg.report.render import Sheet
from report_runs import made_up, parts_of, reported, sections_of


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


def test_an_option_of_words_has_them_as_ticks(tmp_path: Path) -> None:
    records = [made_up("arch", 0, settings={"neighbour_choice": choice}) for choice in ("random", "nearest")]
    (figure,) = parts_of(reported(tmp_path, records)["studies"], Lines)
    assert (list(figure.ticks), list(figure.series[0].x)) == (["nearest", "random"], [0.0, 1.0])
    assert not figure.logarithmic


def test_probing_is_violins_by_task(tmp_path: Path) -> None:
    results = [
        ProbeResult(encoder=f"x/{label}", label=label, trained_on="sst2", task="rte", scores=scores, metrics=[])
        for label, scores in (("arch", [60.0, 62.0, 61.0]), ("standard", [50.0, 50.0]))
    ]
    record = ProbeRecord(settings={}, commit=None, environment={}, started="", finished="", results=results)
    save_as(tmp_path / "probe.json", record)
    found = sections_of(tmp_path)["probing"]
    (sheet,) = parts_of(found, Sheet)
    assert sheet.rows == [["ARCH", "61.0 ± 1.0"], ["Standard", "50.0 ± 0.0"]]
    assert "after training on sst2" in sheet.caption
    (picture,) = parts_of(found, Rows)
    assert [(row.value, bool(row.violin)) for row in picture.rows] == [(61.0, True), (50.0, False)]
