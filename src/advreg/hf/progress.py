"""Progress bars for the work before the first step, such as the survey and the neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers.utils.logging import tqdm

from advreg.core.progress import Progress


@contextmanager
def progress_bar(shown: bool = True) -> Iterator[Progress]:
    """A callback that draws a bar for each task on stderr; the bars disappear afterwards.

    Nothing is drawn if stderr is no terminal, or ``shown`` is false.

    Example:
        >>> with progress_bar() as report:
        ...     for done in range(1, 101):
        ...         report("counting", done, 100)
    """
    is_disabled = None if shown else True  # None: where there is no terminal
    with ExitStack() as display:
        bars: dict[str, Any] = {}
        seen: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in bars:
                bar = tqdm(desc=what, total=total, leave=False, disable=is_disabled)
                bars[what] = display.enter_context(bar)
            bars[what].update(done - seen.get(what, 0))
            seen[what] = done

        yield report
