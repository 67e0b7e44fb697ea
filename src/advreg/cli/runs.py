"""``advreg runs``: what was run, as a table, JSON or CSV."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from advreg.methods import registry
from advreg.methods.base import suggest
from advreg.recipes.parallel import CORPORA
from advreg.recipes.settings import DOCSTRINGS
from advreg.recipes.understanding import TASKS, main_metrics
from advreg.report.gather import gather
from advreg.report.listing import STATUSES, Line, chosen, lines, ordered, sheet_of, to_csv
from advreg.report.render import Sheet, to_rich
from advreg.report.words import counted

_WIDTH_OF_NAMES = 24
_WIDTH_FOR_TIMES = 110  # of a terminal, for a column of when runs began


def list_runs(
    folder: Path, wanted: Mapping[str, Sequence[Any]], sort: str, tuning: bool, form: str, console: Console
) -> None:
    """Print the runs below a folder that are wanted.

    Args:
        folder: it and all that is in it is searched.
        wanted: values by field of :class:`~advreg.report.listing.Line`.
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
    _refuse_unknown("method", wanted, all_lines, registry)
    _refuse_unknown("task", wanted, all_lines, (DOCSTRINGS, *TASKS, *CORPORA))
    listed = ordered(chosen(all_lines, wanted), sort)
    if form == "json":
        print(json.dumps([dataclasses.asdict(line) for line in listed], indent=1, ensure_ascii=False))
        return
    if form == "csv":
        print(to_csv(listed), end="")
        return
    if listed:
        _print_table(sheet_of(listed), console)
    for line in listed:
        if line.error:
            console.print(f"{line.run}: {line.error}", highlight=False, markup=False, soft_wrap=True)
    for problem in found.unreadable:
        console.print(f"unreadable: {problem.name}: {problem.reason}", highlight=False, markup=False, soft_wrap=True)
    told = f"{len(listed)} of {counted(len(all_lines), 'run')} in {folder}"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _refuse_unknown(
    field: str, wanted: Mapping[str, Sequence[Any]], all_lines: Sequence[Line], known: Container[str]
) -> None:
    """A name that no run has is answered with an empty list if it is a known one, and is a mistake if it is not."""
    there = sorted({getattr(line, field) for line in all_lines} - {""})
    for name in wanted.get(field, ()):
        if name not in there and name not in known:
            raise ValueError(
                f"{field} must be one that a run has, got '{name}'{suggest(name, there)}; "
                f"there are {', '.join(there) or 'none'}"
            )


def _print_table(sheet: Sheet, console: Console) -> None:
    if sheet.caption:
        console.print(sheet.caption, highlight=False, markup=False)
    table = to_rich(sheet)
    for column in table.columns:
        words = column.header in ("run", "settings")
        column.no_wrap, column.overflow, column.justify = not words, "fold", "left" if words else column.justify
        if column.header == "run":
            column.min_width = _WIDTH_OF_NAMES
    if console.width < _WIDTH_FOR_TIMES and table.columns[-1].header == "started":
        table.columns.pop()
    console.print(table)
