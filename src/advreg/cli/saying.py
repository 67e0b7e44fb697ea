"""Texts and displays that several commands share."""

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
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from advreg.lab.report.labels import metric_text

_WATCHED = (
    *("eval_accuracy", "eval_pearson", "eval_bleu", "eval_perplexity", "translated", "answered"),
    *("loss", "penalty"),
)
_ROOMY = 100  # columns of a terminal from which on a long bar leaves room for the note


class Notices:
    """Prints each notice once, also if several runs emit it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)


class _NoteColumn(TextColumn):
    """The only column that shrinks in a narrow terminal: one line, truncated."""

    def __init__(self) -> None:
        super().__init__(
            "{task.fields[note]}", table_column=Column(no_wrap=False)
        )  # rich narrows what may wrap

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def bars(console: Console, **options: Any) -> Progress:
    """Bars of runs; each has a ``note`` after it."""
    width = 24 if console.width >= _ROOMY else 8
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=width, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        _NoteColumn(),
        console=console,
        **options,
    )


def note(logs: Mapping[str, float]) -> str:
    """The most useful values of the last log; after training, the share of translated
    sentences.

    Example:
        >>> note({"loss": 0.51234, "learning_rate": 1e-4}), note({"eval_bleu": 31.5})
        ('loss 0.5123', 'bleu 31.5')
        >>> note({"eval_accuracy": 0.535})
        'accuracy 53.5'
    """
    return "  ".join(
        f"{name.removeprefix('eval_')} {metric_text(name, logs[name])}"
        for name in _WATCHED
        if name in logs
    )


@contextmanager
def logs_above(console: Console) -> Iterator[None]:
    """Print log lines of advreg and warnings above the bars within this context."""
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
