from __future__ import annotations

import csv
import io

from rich.console import Console

from advreg.lab.kinds.registry import scale_of
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import (
    Cell,
    Table,
    best_cells,
    csv_text,
    markdown,
    to_html,
    to_rich,
)

TABLE = Table("Scores.", ["", "RTE"], [["a|b", "70.0"], ["[red]", Cell("72.0", bold=True)]])


def test_plain_strings_are_cells() -> None:
    assert TABLE.cells[1] == [Cell("[red]"), Cell("72.0", bold=True)]
    assert TABLE.texts == [["a|b", "70.0"], ["[red]", "72.0"]]


def test_markdown_has_a_rule_bold_cells_and_no_stray_bars() -> None:
    assert markdown(TABLE).splitlines() == [
        "|  | RTE |",
        "|---|---:|",
        r"| a\|b | 70.0 |",
        "| [red] | **72.0** |",
    ]


def test_the_terminal_shows_texts_unchanged() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(to_rich(TABLE))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]" in shown
    assert "72.0" in shown


def test_html_escapes_and_marks_failures_and_long_texts() -> None:
    rows = [["<b>", Cell("1.0", bold=True), "failed", "x" * 41]]
    html = to_html(Table("", ["<i>", "", "", ""], rows))
    assert '<th scope="col">&lt;i&gt;</th>' in html
    assert '<th scope="row">&lt;b&gt;</th><td><strong>1.0</strong></td>' in html
    assert '<td class="failed">failed</td>' in html
    assert f'<td class="words">{"x" * 41}</td>' in html


def test_csv_holds_values_in_full() -> None:
    text = csv_text(["a", "b"], [[1 / 3, 'x,"y"'], [None, "z"]])
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b"],
        ["0.3333333333333333", 'x,"y"'],
        ["", "z"],
    ]


def test_the_lowest_perplexity_is_the_best_as_it_is_shown() -> None:
    spreads = [Spread(2.3451, None, 1), None, Spread(2.3449, None, 1), Spread(2.346, None, 1)]
    texts = ["2.345", "–", "2.345", "2.346"]
    cells = best_cells(texts, spreads, scale_of(["perplexity"]))
    assert [cell.bold for cell in cells] == [True, False, True, False]
    assert [cell.bold for cell in best_cells(texts, spreads)] == [False] * 4  # all 2.3
