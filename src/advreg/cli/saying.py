"""What several commands say in the same words, and show in the same way."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_WATCHED = ("loss", "penalty", "eval_accuracy", "eval_pearson", "eval_bleu", "translated")


class Notices:
    """Prints each notice once, however many runs have it to say."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def bars(console: Console, **options: Any) -> Progress:
    """Bars of runs; each has a ``note`` after it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
        **options,
    )


def note(logs: Mapping[str, float]) -> str:
    """What is worth watching of the last log; when training is over, the share of the sentences that are translated.

    Example:
        >>> note({"loss": 0.51234, "learning_rate": 1e-4}), note({"eval_bleu": 31.5})
        ('loss 0.512', 'bleu 31.500')
    """
    return "  ".join(f"{name.removeprefix('eval_')} {logs[name]:.3f}" for name in _WATCHED if name in logs)


@contextmanager
def logs_above(console: Console) -> Iterator[None]:
    """Within, log lines of advreg and warnings go above the bars instead of through them."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    loggers = [logging.getLogger(name) for name in ("advreg", "py.warnings")]
    for logger in loggers:
        logger.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger in loggers:
            logger.removeHandler(handler)
