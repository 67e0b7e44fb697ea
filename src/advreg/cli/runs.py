"""``advreg runs``: what was run, as a table, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

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
    sheet_of,
    to_csv,
    with_brief_settings,
)
from advreg.lab.report.render import Sheet, to_rich
from advreg.lab.runs.settings import TrainSettings

_WIDTH_OF_NAMES = 32  # at least, where names are that long, before columns are left out for them
_LENGTH_OF_SETTINGS = 120  # where they stand below a name
_UNLIMITED = 10_000
_LEAST_FIRST = (
    "started",
    "training",
    "model",
    "seed",
    "method",
    "task",
    "status",
)  # names of runs tell much of it


def list_runs(
    folder: Path,
    wanted: Mapping[str, Sequence[Any]],
    sort: str,
    tuning: bool,
    form: str,
    console: Console,
) -> None:
    """Print the runs below a folder that are wanted.

    Args:
        folder: it and all that is in it is searched.
        wanted: values by field of :class:`~advreg.lab.report.listing.Line`.
        sort: field to sort by.
        tuning: list runs that only served to choose settings, too?
        form: ``"table"``, ``"json"`` or ``"csv"``.
        console: to print on.
    """
    for status in wanted.get("status", ()):
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got '{status}'")
    found = gather([folder])
    all_lines = lines(found, main_metrics, tuning)
    _refuse_unknown("method", wanted, all_lines, catalogue())
    _refuse_unknown(
        "task", wanted, all_lines, [task for kind in KINDS.values() for task in kind.tasks]
    )
    listed = ordered(chosen(all_lines, wanted), sort)
    if form == "json":
        print(json.dumps([asdict(line) for line in listed], indent=1, ensure_ascii=False))
        return
    if form == "csv":
        print(to_csv(listed), end="")
        return
    if listed:
        _print_table(sheet_of(with_brief_settings(listed, found, _defaults)), console)
    for line in listed:
        if line.error:
            console.print(
                f"{line.run}: {line.error}", highlight=False, markup=False, soft_wrap=True
            )
    for problem in found.unreadable:
        console.print(
            f"unreadable: {problem.name}: {problem.reason}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    told = f"{len(listed)} of {counted(len(all_lines), 'run')} in {folder}"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _refuse_unknown(
    field: str,
    wanted: Mapping[str, Sequence[Any]],
    all_lines: Sequence[Line],
    known: Container[str],
) -> None:
    """A name that no run has is answered with an empty list if it is a known one, and is a mistake
    if it is not.
    """
    there = sorted({getattr(line, field) for line in all_lines} - {""})
    for name in wanted.get(field, ()):
        if name not in there and name not in known:
            raise ValueError(
                f"{field} must be one that a run has, got '{name}'{suggest(name, there)}; "
                f"there are {', '.join(there) or 'none'}"
            )


def _defaults(method: str) -> dict[str, Any]:
    """The options of a method as they are if none is given, with settings that all tasks share."""
    options = options_of_method(method) if is_method(method) else []
    shared = {"site": TrainSettings.site, "precision": TrainSettings.precision}
    return {**shared, **{option.name: option.default for option in options}}


def _print_table(sheet: Sheet, console: Console) -> None:
    """At any width every row says which run it is: settings go below its name, and columns are left
    out, if need be.
    """
    if sheet.caption:
        console.print(sheet.caption, highlight=False, markup=False)
    left_out = []
    if _width(sheet, console) > console.width:
        sheet = _settings_below(sheet)
    for name in _LEAST_FIRST:
        if name in sheet.header and _width(sheet, console) > console.width:
            sheet = _without(sheet, name)
            left_out.append(name)
    console.print(_table(sheet))
    if left_out:
        told = f"no room for {', '.join(left_out)}: widen the terminal, or use --json or --csv"
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _table(sheet: Sheet) -> Table:
    table = to_rich(sheet)
    for column in table.columns:
        words = column.header in ("run", "settings")
        column.no_wrap, column.overflow, column.justify = (
            not words,
            "fold",
            "left" if words else column.justify,
        )
    return table


def _width(sheet: Sheet, console: Console) -> int:
    """Columns of the terminal that a table needs, if long names of runs are folded."""
    table = _table(sheet)
    table.columns[sheet.header.index("run")].max_width = _WIDTH_OF_NAMES
    return Measurement.get(console, console.options.update(width=_UNLIMITED), table).maximum


def _settings_below(sheet: Sheet) -> Sheet:
    """Settings below the names of runs, instead of beside them."""
    if "settings" not in sheet.header:
        return sheet
    run, settings = sheet.header.index("run"), sheet.header.index("settings")
    rows = [list(row) for row in sheet.rows]
    for row in rows:
        if row[settings] != NOTHING:
            row[run] += f"\n{_shortened(row[settings])}"
    return _without(replace(sheet, rows=rows), "settings")


def _shortened(settings: str) -> str:
    """The first of the settings, and how many more there are; all of them if that is not long."""
    told = settings.split(", ")
    kept = [
        each
        for number, each in enumerate(told)
        if len(", ".join(told[: number + 1])) <= _LENGTH_OF_SETTINGS
    ]
    return (
        ", ".join([*kept, f"{len(told) - len(kept)} more"]) if len(kept) < len(told) else settings
    )


def _without(sheet: Sheet, name: str) -> Sheet:
    kept = [number for number, column in enumerate(sheet.header) if column != name]
    return Sheet(
        sheet.caption,
        [sheet.header[number] for number in kept],
        [[row[number] for number in kept] for row in sheet.rows],
        frozenset((row, kept.index(column)) for row, column in sheet.bold if column in kept),
    )
