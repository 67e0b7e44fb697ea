"""Progress of what happens before and between the steps of training: the survey, the neighbours, a sweep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from advreg.core.progress import Progress


@contextmanager
def progress_bar(shown: bool = True) -> Iterator[Progress]:
    """A callback that draws a bar for each thing it is told of; the bars are gone afterwards.

    They are drawn on stderr, and only if it is a terminal: where it is not, or ``shown`` is false, nothing is.

    Example:
        >>> with progress_bar() as report:
        ...     for done in range(1, 101):
        ...         report("counting", done, 100)
    """
    if not shown or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console  # here, because it takes a tenth of a second
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    bars: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), transient=True) as progress:

        def report(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=total)

        yield report
