from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advreg.lab.report.page.parts import Folded, Heading, Tiles
from advreg.lab.report.tables import Table
from comparisons import comparison
from report_runs import FOUR, made_up, parts_of, reported, save, sections_of


def test_a_section_that_has_nothing_to_say_is_left_out(tmp_path: Path) -> None:
    found = reported(tmp_path, FOUR)
    keys = [
        "verdict",
        "overview",
        "scores",
        "cost",
        "training",
        "gradients",
        "perturbation",
        "runs",
    ]
    assert list(found) == keys


def test_the_overview_counts_runs_and_says_where_they_were_made(tmp_path: Path) -> None:
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "plan.json").write_text(json.dumps({"method": "arch", "seed": 1}))
    found = reported(
        tmp_path, [*FOUR, made_up("arch", 7).fail("it broke"), made_up(details={"held_out": {}})]
    )["overview"]
    (tiles,) = parts_of(found, Tiles)
    assert tiles.tiles[0] == ("runs finished", "4", "1 failed, 1 unfinished, 1 for tuning")
    assert ("methods", "2", "Standard, ARCH") in tiles.tiles
    assert ("seeds", "2", "0, 1") in tiles.tiles
    (conditions, _) = parts_of(found, Table)
    assert conditions.texts == [
        ["c0ffeec0ff", "0.1.0", "cpu", "Linux x86_64", "3.11.7", "2.13.0", "5.22.2", "fp32", "6"]
    ]
    (settings,) = parts_of(found, Folded)
    assert ["radius", "–", "0.3"] in settings.parts[0].texts
    assert ["epochs", "4", "4"] in settings.parts[0].texts


def test_whatever_has_no_result_is_listed_with_its_reason(tmp_path: Path) -> None:
    record = comparison(
        {"rte": ["accuracy"]}, ["arch", "smart"], [0], errors={("rte", "smart", 0): "killed"}
    )
    record.save(tmp_path / "c")
    save(tmp_path / "c" / "rte" / "arch" / "seed-0", made_up().fail(ValueError("no luck")))
    (tmp_path / "c" / "bad").mkdir()
    (tmp_path / "c" / "bad" / "record.json").write_text("{")
    (sheet,) = parts_of(sections_of(tmp_path)["failed"], Table)
    reasons: dict[str, Any] = {row[0]: row[1:] for row in sheet.texts}
    assert reasons["rte/arch/seed-0"] == ["failed", "ValueError: no luck"]
    assert reasons["rte/smart/seed-0"] == ["failed", "killed"]
    assert reasons["bad/record.json"][0] == "unreadable"
    assert len(sheet.rows) == 3


def test_failures_of_two_comparisons_are_told_apart(tmp_path: Path) -> None:
    record = comparison(
        {"rte": ["accuracy"]}, ["smart"], [0], errors={("rte", "smart", 0): "killed"}
    )
    for folder in ("one", "two"):
        record.save(tmp_path / folder)
    (sheet,) = parts_of(sections_of(tmp_path)["failed"], Table)
    assert [row[0] for row in sheet.texts] == ["one/rte/smart/seed-0", "two/rte/smart/seed-0"]


def test_several_contests_have_headings_and_one_has_none(tmp_path: Path) -> None:
    save(tmp_path / "x", made_up())
    assert parts_of(sections_of(tmp_path)["scores"], Heading) == []
    save(tmp_path / "y", made_up(model="org/large"))
    assert [part.text for part in parts_of(sections_of(tmp_path)["scores"], Heading)] == [
        "Runs of small",
        "Runs of large",
    ]


def test_many_pictures_are_folded_task_by_task(tmp_path: Path) -> None:
    records = [
        made_up(method, 0, task=task)
        for task in ("rte", "mrpc", "cola", "sst2", "qnli")
        for method in ("standard", "arch")
    ]
    found = reported(tmp_path, records)["gradients"]
    assert [part.title for part in found.parts if isinstance(part, Folded)] == [
        f"{task} (2 pictures)" for task in ("RTE", "MRPC", "CoLA", "SST-2", "QNLI")
    ]
