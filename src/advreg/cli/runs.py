"""``advreg runs``: a list of runs as a table, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from advreg.core.checks import suggest
from advreg.lab.catalogue import catalogue, is_method, options_of_method
from advreg.lab.kinds.registry import KINDS, main_metrics
from advreg.lab.report.gather import gather
from advreg.lab.report.labels import NOTHING, counted
from advreg.lab.report.listing import (
    STATUSES,
    Line,
    chosen,
    lines,
    ordered,
    table_of,
    to_csv,
)
from advreg.lab.report.tables import Cell, Table, to_rich

_WIDTH_OF_NAMES = 24  # at least, for names that are longer
_LENGTH_OF_SETTINGS = 40  # below a name
_UNLIMITED = 10_000
_LEAST_FIRST = ("started", "training", "status", "task", "model", "seed", "method")


def list_runs(
    folder: Path,
    wanted: Mapping[str, Sequence[Any]],
    sort: str,
    tuning: bool,
    form: str,
    console: Console,
) -> None:
    """Print the selected runs below a folder.

    Args:
        folder: searched recursively.
        wanted: values by field of :class:`~advreg.lab.report.listing.Line`.
        sort: field to sort by.
        tuning: whether to include runs for tuning.
        form: ``"table"``, ``"json"`` or ``"csv"``.
        console: to print on.
    """
    for status in wanted.get("status", ()):
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got '{status}'")
    found = gather([folder])
    all_lines = lines(found, main_metrics, tuning, _defaults)
    _refuse_unknown("method", wanted, all_lines, catalogue())
    _refuse_unknown(
        "task", wanted, all_lines, [task for kind in KINDS.values() for task in kind.tasks]
    )
    listed = ordered(chosen(all_lines, wanted), sort)
    if form == "json":
        print(json.dumps([asdict(line) for line in listed], indent=1, ensure_ascii=False))
    elif form == "csv":
        print(to_csv(listed), end="")
    else:
        if listed:
            _print_table(table_of(listed), console)
        told = [f"{line.run}: {line.error}" for line in listed if line.error]
        told += [f"unreadable: {each.name}: {each.reason}" for each in found.unreadable]
        _say([*told, f"{len(listed)} of {counted(len(all_lines), 'run')} in {folder}"], console)


def _say(told: Sequence[str], console: Console) -> None:
    console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def _refuse_unknown(
    field: str,
    wanted: Mapping[str, Sequence[Any]],
    all_lines: Sequence[Line],
    known: Container[str],
) -> None:
    """Refuse a name that is unknown and that no run has; for a known name the list may be empty."""
    there = sorted({getattr(line, field) for line in all_lines} - {""})
    for name in wanted.get(field, ()):
        if name not in there and name not in known:
            raise ValueError(
                f"{field} must be one that a run has, got '{name}'{suggest(name, there)}; "
                f"there are {', '.join(there) or 'none'}"
            )


def _defaults(method: str) -> dict[str, Any]:
    """The default options of a method."""
    options = options_of_method(method) if is_method(method) else []
    return {option.name: option.default for option in options}


def _print_table(table: Table, console: Console) -> None:
    """Print a table that fits the width of the console.

    If necessary, settings go below the names of runs, and the least important columns are omitted.
    """
    if table.caption:
        console.print(table.caption, highlight=False, markup=False)
    if _width(table, console) > console.width:
        table = _settings_below(table)
    left_out = []
    for name in _LEAST_FIRST:
        if name in table.header and _width(table, console) > console.width:
            table = _without(table, name)
            left_out.append(name)
    console.print(_rich(table))
    if left_out:
        told = f"no room for {', '.join(left_out)}: widen the terminal, or use --json or --csv"
        _say([told], console)


def _rich(table: Table) -> RichTable:
    drawn = to_rich(table)
    for column in drawn.columns:
        wraps = column.header in ("run", "settings")
        column.no_wrap, column.overflow = not wraps, "fold"
        column.justify = "left" if wraps else column.justify
    return drawn


def _width(table: Table, console: Console) -> int:
    """The width that a table needs if long names of runs are folded."""
    drawn = _rich(table)
    drawn.columns[table.header.index("run")].max_width = _WIDTH_OF_NAMES
    return Measurement.get(console, console.options.update(width=_UNLIMITED), drawn).maximum


def _settings_below(table: Table) -> Table:
    """Settings below the names of runs instead of next to them."""
    if "settings" not in table.header:
        return table
    run, settings = table.header.index("run"), table.header.index("settings")
    rows = table.cells
    for row in rows:
        if row[settings].text != NOTHING:
            row[run] = Cell(f"{row[run].text}\n{_shortened(row[settings].text)}")
    return _without(Table(table.caption, table.header, rows), "settings")


def _shortened(settings: str) -> str:
    """The first settings, and the number of the others."""
    told = settings.split(", ")
    kept = [
        each
        for number, each in enumerate(told)
        if len(", ".join(told[: number + 1])) <= _LENGTH_OF_SETTINGS
    ]
    more = [f"{len(told) - len(kept)} more"] if len(kept) < len(told) else []
    return ", ".join([*kept, *more])


def _without(table: Table, name: str) -> Table:
    place = table.header.index(name)
    header, *rows = (
        [*row[:place], *row[place + 1 :]] for row in ([*map(Cell, table.header)], *table.cells)
    )
    return Table(table.caption, [cell.text for cell in header], rows)
