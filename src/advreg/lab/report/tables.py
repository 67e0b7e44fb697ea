"""Tables, and their forms: Markdown, the terminal, HTML and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from advreg.lab.kinds.registry import Scale
from advreg.lab.report.statistics import Spread

_LONG = 40  # characters from which a cell is text that may wrap


@dataclass(frozen=True)
class Cell:
    """A cell; the best of a column is bold."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A caption, a header and rows; a plain string is a cell that is not bold."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]

    @property
    def cells(self) -> list[list[Cell]]:
        """All rows as cells."""
        return [
            [cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows
        ]

    @property
    def texts(self) -> list[list[str]]:
        """All rows as text."""
        return [[cell.text for cell in row] for row in self.cells]


def best_cells(
    texts: Sequence[str], spreads: Sequence[Spread | None], scale: Scale | None = None
) -> list[Cell]:
    """Cells of a column; those with the best of the means, rounded as shown, are bold.

    Where all means are equal, or there is one alone, none is the best.
    """
    scale = scale or Scale()
    means = [None if each is None else round(each.mean, scale.decimals) for each in spreads]
    ranked = sorted({mean for mean in means if mean is not None}, reverse=not scale.lower_is_better)
    bold = [len(ranked) > 1 and mean == ranked[0] for mean in means]
    bold += [False] * (len(texts) - len(bold))
    return [Cell(*each) for each in zip(texts, bold, strict=True)]


def markdown(table: Table) -> str:
    """The table on a Markdown page, without its caption."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(map(escape_markdown, cells))} |"

    rows = [[f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in table.cells]
    rule = "|".join(["---", *("---:" for _ in table.header[1:])])
    return "\n".join([line(table.header), f"|{rule}|", *map(line, rows)])


def escape_markdown(text: str) -> str:
    return text.replace("|", r"\|")


def to_rich(table: Table) -> RichTable:
    """The table in a terminal, without its caption."""
    drawn = RichTable(box=box.SIMPLE_HEAD)
    for number, name in enumerate(table.header):
        drawn.add_column(escape(name), justify="right" if number else "left")
    for row in table.cells:
        drawn.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
    return drawn


def to_html(table: Table) -> str:
    """The table element, without its caption."""
    head = "".join(f'<th scope="col">{escape_html(name)}</th>' for name in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape_html(first.text)}</th>{"".join(map(_html_cell, others))}</tr>'
        for first, *others in table.cells
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _html_cell(cell: Cell) -> str:
    text = escape_html(cell.text)
    if cell.text == "failed":
        return f'<td class="failed">{text}</td>'
    if len(cell.text) > _LONG:
        return f'<td class="words">{text}</td>'
    return f"<td><strong>{text}</strong></td>" if cell.bold else f"<td>{text}</td>"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Values in full as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
