from __future__ import annotations

from pathlib import Path

import pytest

from advreg.lab.report.page.parts import Bullets
from advreg.lab.report.pictures.figures import Rows
from advreg.lab.report.tables import Table
from comparisons import comparison
from report_runs import FOUR, made_up, parts_of, reported, save, sections_of


def test_scores_are_a_table_and_a_picture_with_intervals_and_seeds(tmp_path: Path) -> None:
    found = reported(tmp_path, FOUR)["scores"]
    assert parts_of(found, Table)[0].texts == [["Standard", "75.0 ± 7.1"], ["ARCH", "75.0 ± 7.1"]]
    (picture,) = parts_of(found, Rows)
    assert [row.look.label for row in picture.marks] == ["Standard", "ARCH"]
    assert list(picture.marks[1].dots) == pytest.approx([70.0, 80.0])
    assert picture.marks[1].interval is not None
    assert "Each method minus Standard" in parts_of(found, Table)[1].caption


def test_differences_are_left_out_where_a_method_has_several_settings(tmp_path: Path) -> None:
    variants = [made_up("arch", 0, settings={"radius": radius}) for radius in (0.1, 1.0)]
    found = reported(tmp_path, [*FOUR[:2], *variants])["scores"]
    assert [sheet for sheet in parts_of(found, Table) if "minus" in sheet.caption] == []


def test_cost_is_passes_time_and_memory(tmp_path: Path) -> None:
    records = [made_up("standard", 0, seconds=2.0), made_up("arch", 0, seconds=5.0)]
    found = reported(tmp_path, records)["cost"]
    (sheet,) = parts_of(found, Table)
    assert sheet.texts[1] == ["ARCH", "2.00", "1.00", "250.0", "2.50", "5 s", "10 s", "4.1 kB", "–"]
    (picture,) = parts_of(found, Rows)
    assert [row.value for row in picture.marks] == pytest.approx([1.0, 2.5])
    assert [list(row.dots) for row in picture.marks] == [[1.0], [2.5]]


def test_what_a_reader_must_know_of_a_comparison_is_told(tmp_path: Path) -> None:
    comparison({"reviews": ["accuracy"]}, ["arch"], [0], notes=["smart had fewer candidates"]).save(
        tmp_path
    )
    save(tmp_path / "reviews" / "arch" / "seed-0", made_up())
    (remarks,) = parts_of(sections_of(tmp_path)["scores"], Bullets)
    assert remarks.lines == ["smart had fewer candidates"]
