from __future__ import annotations

from pathlib import Path

import pytest

from advreg.lab.drawing import PictureError
from advreg.lab.report.pictures.figures import Rows
from advreg.lab.report.sections.probing import draw_probing
from advreg.lab.report.tables import Table
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import save_as
from report_runs import parts_of, sections_of

RESULTS = [
    ProbeResult(
        encoder=f"x/{label}", label=label, trained_on="sst2", task="rte", scores=scores, metrics=[]
    )
    for label, scores in (("arch", [60.0, 62.0, 61.0]), ("standard", [50.0, 50.0]))
]


def test_probing_is_a_table_and_dots_by_task(tmp_path: Path) -> None:
    record = ProbeRecord(
        settings={}, commit=None, environment={}, started="", finished="", results=RESULTS
    )
    save_as(tmp_path / "probe.json", record)
    found = sections_of(tmp_path)["probing"]
    (table,) = parts_of(found, Table)
    assert table.texts == [["Standard", "50.0 ± 0.0"], ["ARCH", "61.0 ± 1.0"]]
    assert "after training on SST-2" in table.caption
    (picture,) = parts_of(found, Rows)
    assert [(row.value, row.interval) for row in picture.marks] == [
        (50.0, (50.0, 50.0)),
        (61.0, (60.5, 61.5)),
    ]


def test_the_picture_names_tasks_and_methods(tmp_path: Path) -> None:
    draw_probing(RESULTS, tmp_path / "heads.svg")
    drawn = (tmp_path / "heads.svg").read_text(encoding="utf-8")
    for text in ("RTE", "Standard", "ARCH", "frozen encoders after training on SST-2"):
        assert text in drawn


def test_nothing_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        draw_probing([], tmp_path / "heads.svg")
