from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from advreg.lab.kinds import registry
from advreg.lab.report.gather import gather
from advreg.lab.report.listing import (
    Line,
    chosen,
    lines,
    ordered,
    table_of,
    to_csv,
)
from advreg.lab.report.tables import Cell
from report_runs import made_up, save

DEFAULTS = {"ema": 0.01, "neighbours": 1, "radius": 0.3}


@pytest.fixture
def listed(tmp_path: Path) -> list[Line]:
    save(tmp_path / "a", made_up("standard", 0, 0.7))
    save(tmp_path / "b", made_up("arch", 0, 0.9, settings={"radius": 0.1}, task="mrpc"))
    save(tmp_path / "c", made_up("arch", 1, 0.8, settings={"radius": 0.3}))
    save(tmp_path / "d", made_up("smart", 2).fail("out of memory"))
    save(tmp_path / "e", made_up("arch", 3, details={"held_out": {"share": 0.1}}))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "plan.json").write_text(json.dumps({"method": "freelb", "seed": 5}))
    return lines(gather([tmp_path]))


def ends(found: Sequence[Line]) -> list[str]:
    return [line.run[-1] for line in found]


def test_a_line_says_what_was_run_what_came_out_and_in_what_it_differs(listed: list[Line]) -> None:
    assert ends(listed) == list("abcdf")
    assert (listed[1].method, listed[1].task, listed[1].score) == (
        "arch",
        "mrpc",
        pytest.approx(90.0),
    )
    assert listed[1].settings == listed[0].settings == ""  # alone on their tasks
    assert (listed[3].status, listed[3].error, listed[3].score) == ("failed", "out of memory", None)
    assert (listed[4].status, listed[4].method, listed[4].seed) == ("unfinished", "freelb", 5)


def test_perplexity_has_its_own_scale_and_the_lowest_is_bold(tmp_path: Path) -> None:
    for name, value in (("a", 2.3456), ("b", 2.1)):
        made = made_up("standard", 0)
        outcome = replace(made.outcome, metrics={"perplexity": value, "bleu": 31.0})
        save(tmp_path / name, replace(made, outcome=outcome))
    table = table_of(lines(gather([tmp_path]), registry.main_metrics))
    place = list(table.header).index("score")
    shown = [row[place] for row in table.cells]
    assert shown == [Cell("2.346"), Cell("2.100", bold=True)]


def test_a_line_says_where_its_run_is(listed: list[Line], tmp_path: Path) -> None:
    assert [line.path for line in listed] == [str(tmp_path / name) for name in "abcdf"]


def test_runs_for_tuning_are_listed_if_they_are_asked_for(
    listed: list[Line], tmp_path: Path
) -> None:
    assert ends(lines(gather([tmp_path]), tuning=True)) == list("abcdef")


def test_every_named_field_must_have_one_of_the_wanted_values(listed: list[Line]) -> None:
    assert ends(chosen(listed, {"method": ["arch", "standard"], "task": ["reviews"]})) == ["a", "c"]
    assert ends(chosen(listed, {"method": [], "seed": [0]})) == ["a", "b"]
    assert ends(chosen(listed, {"status": ["failed", "unfinished"]})) == ["d", "f"]


def test_people_are_told_what_differs_between_listed_runs_of_a_kind_and_is_not_at_its_default(
    tmp_path: Path,
) -> None:
    for name, task, options, training in (
        ("a", "reviews", {"neighbours": 7}, {}),
        (
            "b",
            "reviews",
            {"ema": 0.5},
            {"save_steps": 7, "save_strategy": "no", "weight_decay": 0.1},
        ),
        ("c", "reviews", {}, {"save_strategy": "epoch", "weight_decay": 0.1}),
        ("d", "mrpc", {"radius": 7.0}, {}),  # alone on its task: nothing to be told apart from
    ):
        save(tmp_path / name, made_up(task=task, settings={**DEFAULTS, **options}, more=training))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "plan.json").write_text(json.dumps({"method": "arch", "seed": 5}))
    found = gather([tmp_path])
    brief = lines(found)
    assert [line.settings for line in brief] == [
        "neighbours 7",
        "ema 0.5, weight_decay 0.1",
        "weight_decay 0.1",
        "",
        "",
    ]
    assert "settings" in table_of(brief).header


def test_a_setting_that_one_of_two_runs_has_is_not_said_of_both(tmp_path: Path) -> None:
    save(tmp_path / "a", made_up(settings={**DEFAULTS, "ema": 0.5}))
    save(tmp_path / "b", made_up(settings=DEFAULTS))
    found = gather([tmp_path])
    sheet = table_of(lines(found))
    assert "ema" not in sheet.caption
    assert [row[sheet.header.index("settings")] for row in sheet.texts] == ["ema 0.5", "–"]


def test_lines_are_sorted_by_a_field_and_those_without_it_come_last_either_way(
    listed: list[Line],
) -> None:
    assert ends(ordered(listed, "score")) == ["a", "c", "b", "d", "f"]
    assert ends(ordered(listed, "-score")) == ["b", "c", "a", "d", "f"]
    with pytest.raises(ValueError, match=r"sort must be one of run, task, .*, got 'scroe'"):
        ordered(listed, "scroe")


def test_what_is_the_same_in_all_lines_is_said_once(listed: list[Line]) -> None:
    sheet = table_of(chosen(listed, {"method": ["arch"]}))
    assert sheet.caption == "all of them: model small, method arch, status finished"
    assert sheet.header == ["run", "task", "seed", "score", "training", "started"]
    assert [row[3] for row in sheet.texts] == ["90.0", "80.0"]
    assert sheet.cells[0][3] == Cell("90.0")


def test_the_best_run_of_a_task_is_bold_and_equal_ones_are_not(listed: list[Line]) -> None:
    table = table_of(chosen(listed, {"task": ["reviews"]}))
    scores = [row[table.header.index("score")] for row in table.cells]
    assert [cell.text for cell in scores if cell.bold] == ["80.0"]
    twice = [listed[0], listed[0]]
    assert not any(cell.bold for row in table_of(twice).cells for cell in row)


def test_a_failed_run_alone_has_a_table_too(listed: list[Line]) -> None:
    sheet = table_of(chosen(listed, {"status": ["failed"]}))
    assert "score" not in sheet.header


def test_csv_holds_every_field(listed: list[Line]) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(listed))))
    assert rows[3]["error"] == "out of memory"
    assert float(rows[1]["score"]) == pytest.approx(90.0)
    assert len(rows) == 5
