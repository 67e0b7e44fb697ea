"""``advreg runs``: a list of runs as a table, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from advreg.core.checks import check_choice, suggest
from advreg.lab.catalogue import catalogue
from advreg.lab.kinds.registry import KINDS
from advreg.lab.report.gather import gather
from advreg.lab.report.labels import counted
from advreg.lab.report.listing import (
    STATUSES,
    Line,
    chosen,
    lines,
    ordered,
    table_of,
    to_csv,
)
from advreg.lab.report.tables import Table, to_rich

_WIDTH_OF_NAMES = 24  # at least, for names that are longer
_UNLIMITED = 10_000
_LEAST_FIRST = ("settings", "started", "training", "status", "task", "model", "seed", "method")

Wanted = Mapping[str, Sequence[Any]]


def list_runs(
    folder: Path,
    wanted: Wanted,
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
    found = gather([folder])
    all_lines = lines(found, tuning)
    _check(wanted, all_lines)
    listed = ordered(chosen(all_lines, wanted), sort)
    if form == "json":
        print(json.dumps([asdict(line) for line in listed], indent=1, ensure_ascii=False))
    elif form == "csv":
        print(to_csv(listed), end="")
    else:
        _print_table(listed, console)
        told = [f"{line.run}: {line.error}" for line in listed if line.error]
        told += [f"unreadable: {each.name}: {each.reason}" for each in found.unreadable]
        _say([*told, f"{len(listed)} of {counted(len(all_lines), 'run')} in {folder}"], console)


def _say(told: Sequence[str], console: Console) -> None:
    console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def _check(wanted: Wanted, all_lines: Sequence[Line]) -> None:
    """Refuse a name that no run has and that is no known name; a known one lists no runs."""
    for status in wanted.get("status", ()):
        check_choice("status", status, STATUSES)
    known = {
        "method": catalogue(),
        "task": [task for kind in KINDS.values() for task in kind.tasks],
    }
    for field, names in known.items():
        there = sorted({getattr(line, field) for line in all_lines} - {""})
        for name in wanted.get(field, ()):
            if name not in there and name not in names:
                raise ValueError(
                    f"{field} must be one that a run has, got '{name}'{suggest(name, there)}; "
                    f"there are {', '.join(there) or 'none'}"
                )


def _print_table(listed: Sequence[Line], console: Console) -> None:
    """Print a table in the width of the console, without the least important columns if need be."""
    if not listed:
        return
    table, left_out = table_of(listed), list[str]()
    for name in _LEAST_FIRST:
        if name in table.header and _width(table, console) > console.width:
            left_out.append(name)
            table = table_of(listed, left_out)
    if table.caption:
        console.print(table.caption, highlight=False, markup=False)
    console.print(_rich(table))
    if left_out:
        told = f"no room for {', '.join(left_out)}: widen the terminal, or use --json or --csv"
        _say([told], console)


def _rich(table: Table) -> RichTable:
    """A table of which only the names of runs may wrap."""
    drawn = to_rich(table)
    for column in drawn.columns:
        column.no_wrap, column.overflow = str(column.header) != "run", "fold"
    return drawn


def _width(table: Table, console: Console) -> int:
    """The width that a table needs if long names of runs are folded."""
    drawn = _rich(table)
    drawn.columns[table.header.index("run")].max_width = _WIDTH_OF_NAMES
    return Measurement.get(console, console.options.update(width=_UNLIMITED), drawn).maximum
