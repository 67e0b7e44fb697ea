from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from advreg.lab.report.compare import Results, results
from advreg.lab.report.gains import gain_markdown, gain_parts, gain_tables
from advreg.lab.report.page.parts import Bullets
from advreg.lab.report.score_tables import score_tables
from advreg.lab.report.tables import Table, to_rich
from advreg.records.compare import CompareRecord, MethodGain
from comparisons import candidate, comparison, run_record

SCORES = {"standard": [70.0, 71.0], "arch": [72.0, 72.4], "standard-longer": [70.5, 71.1]}
CONTROL = "Standard, 2 × the epochs"


def compared(tasks: tuple[str, ...] = ("rte",), **changes: Any) -> tuple[CompareRecord, Results]:
    """A comparison with gains, a control, and tuned settings."""
    task = tasks[0] if len(tasks) == 1 else None
    gains = [
        MethodGain(
            method="arch", task=task, seeds=2, mean=1.7, low=-0.4, high=3.8, time=1.45,
            verdict="undecided",
        ),
        MethodGain(method="standard-longer", task=task, seeds=2, mean=0.3, time=2.0),
    ]  # fmt: skip
    gains += [replace(each, task=name, verdict=None) for name in tasks[1:] for each in gains]
    gains += [replace(each, task=tasks[0], verdict=None) for each in gains[:2] if len(tasks) > 1]
    tuning = {(name, method): [candidate()] for name in tasks for method in ("standard", "arch")}
    record = comparison(
        {name: ["accuracy"] for name in tasks}, list(SCORES), [0, 1], tuning=tuning,
        reference="standard", controls={"standard-longer": CONTROL}, gains=gains,
        grid={"common": {"learning_rate": [1e-3]}}, conclusion="nothing beats tuned Standard",
    )  # fmt: skip
    choices = [
        replace(choice, chosen=0)
        for choice in record.choices
        if choice.method in ("standard", "arch")
    ]
    record = replace(record, **{"choices": choices, **changes})
    runs = {
        (name, method, seed): run_record(method, seed, {"accuracy": value / 100})
        for name in tasks
        for method, values in SCORES.items()
        for seed, value in enumerate(values)
    }
    return record, results(record, runs)


def test_standard_is_the_reference_and_controls_are_rows_without_a_verdict() -> None:
    (table,) = gain_tables(*compared())
    assert "method minus Standard, in points" in table.caption
    assert "2 seeds" in table.caption
    assert "95 % confidence" in table.caption
    assert table.header == ["method", "setting", "score", "gain", "verdict", "time", "passes"]
    setting = "radius 0.5, learning_rate 0.001"  # the method's own first
    assert table.texts == [
        ["Standard", setting, "70.5 ± 0.7", "–", "reference", "1.00", "–"],
        ["ARCH", setting, "72.2 ± 0.3", "+1.7 [−0.4, +3.8]", "undecided", "1.45", "–"],
        [CONTROL, "as Standard's", "70.8 ± 0.4", "+0.3", "–", "2.00", "–"],
    ]


@pytest.mark.parametrize(("width", "missing"), [
    (200, set()), (118, {"passes"}), (80, {"passes", "setting"}),
    (72, {"passes", "setting", "time"}),
])  # fmt: skip
def test_a_narrow_terminal_drops_the_columns_of_least_use(width: int, missing: set[str]) -> None:
    (whole,), (table,) = gain_tables(*compared()), gain_tables(*compared(), width=width)
    assert set(whole.header) - set(table.header) == missing
    if width >= 80:
        console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
        console.print(to_rich(table))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert len([line for line in lines if line.strip()]) == len(table.rows) + 2  # none wraps


def test_methods_with_fewer_seeds_have_their_number() -> None:
    record, found = compared()
    del found.scores["rte", "arch"][1]  # type: ignore[attr-defined]
    (table,) = gain_tables(record, found)
    assert [row[2] for row in table.texts] == [
        "70.5 ± 0.7 (n = 2)", "72.0 (n = 1)", "70.8 ± 0.4 (n = 2)",
    ]  # fmt: skip


def test_several_tasks_have_a_table_of_their_own() -> None:
    main, by_task = gain_tables(*compared(("rte", "mrpc")))
    assert "mean over 2 tasks" in main.caption
    assert by_task.header == ["method", "RTE", "MRPC"]
    assert by_task.texts == [["ARCH", *["+1.7 [−0.4, +3.8]"] * 2], [CONTROL, "+0.3", "+0.3"]]


def test_settings_that_differ_by_task_are_not_one_setting() -> None:
    record, found = compared(("rte", "mrpc"))
    other = replace(record.choices[1].candidates[0], settings={"radius": 9.0})
    choices = [*record.choices[:-1], replace(record.choices[-1], candidates=[other])]
    main, _ = gain_tables(replace(record, choices=choices), found)
    assert [row[1] for row in main.texts][1] == "differs by task"


def test_the_pages_have_the_conclusion_the_table_and_what_went_wrong() -> None:
    record, found = compared()
    flawed = replace(record, gains=[replace(record.gains[0], flaw="seed 1 of rte failed")])
    sentences, table = gain_parts(flawed, found)
    assert isinstance(sentences, Bullets)
    assert sentences.lines == [record.conclusion, "ARCH: seed 1 of rte failed"]
    assert isinstance(table, Table)
    text = gain_markdown(flawed, found)
    assert text.startswith("nothing beats tuned Standard\n\nGain of each method: ")
    assert re.search(r"\| ARCH \| .* \| \+1.7 \[−0.4, \+3.8\] \| undecided \| 1.45 \|", text)
    assert text.endswith("- ARCH: seed 1 of rte failed\n\n")


def test_plain_intervals_are_not_shown_beside_those_that_allow_for_looks() -> None:
    record, found = compared()
    assert not any("minus" in table.caption for table in score_tables(found))
    assert gain_tables(replace(record, gains=[]), found) == []


def test_differences_without_gains_are_from_standard_too() -> None:
    record, _ = compared(gains=[])
    runs = {
        ("rte", method, seed): run_record(method, seed, {"accuracy": value / 100})
        for method, values in SCORES.items()
        for seed, value in enumerate(values)
    }
    table = next(t for t in score_tables(results(record, runs)) if "minus" in t.caption)
    assert table.caption.startswith("Each method minus Standard, in points")
    assert table.texts[0][0] == "ARCH"
    assert table.texts[0][1].startswith("+1.7 [")
