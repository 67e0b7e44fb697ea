"""Progress of what happens before and between the steps of training: the survey, the neighbours, a
sweep.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from advreg.core.progress import Progress as Report


@contextmanager
def progress_bar(shown: bool = True) -> Iterator[Report]:
    """A callback that draws a bar for each task; the bars disappear afterwards.

    They are drawn on stderr, and only if it is a terminal: where it is not, or ``shown`` is false,
    nothing is.

    Example:
        >>> with progress_bar() as report:
        ...     for done in range(1, 101):
        ...         report("counting", done, 100)
    """
    if not shown or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    with ExitStack() as display:
        bars: Any = None
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            nonlocal bars
            if bars is None:  # nothing is drawn for work that never comes
                bars = display.enter_context(_bars())
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def _bars() -> Any:
    from rich.console import Console  # here, because it takes a tenth of a second
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
