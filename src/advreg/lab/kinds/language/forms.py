"""Forms of samples, and how they are guessed from the columns of a file.

* ``chat``: a column of turns (`MESSAGES`), a list of objects with ``role`` and ``content``;
* ``prompts``: a column of prompts and one of completions (one of `PAIRS`);
* ``text``: a column of plain text (`TEXT`); every token is learnt.

The first form whose columns there are is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from advreg.lab.kinds.sources import DataError, Table

Kind = Literal["chat", "prompts", "text"]
MESSAGES = ("messages", "conversation")
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
)
TEXT = ("text", "content")
REFERENCES = "references"
COLUMNS = ("messages", "prompt", "completion", "text")
"""What named columns hold."""
TEXT_SUFFIXES = (".txt", ".txt.gz")
_NUMBERS = ("idx", "id", "index")


@dataclass(frozen=True)
class Form:
    """How the rows of a table are read: its kind, and the columns that hold what is read."""

    kind: Kind
    columns: tuple[str, ...]


def form_of(columns: Sequence[str], named: Mapping[str, str] | None = None) -> Form | None:
    """The form of a table with these columns; ``None`` if it cannot be guessed.

    Args:
        columns: of the table.
        named: columns by what they hold: ``messages``, ``prompt``, ``completion``, ``text``.

    Example:
        >>> form_of(["idx", "prompt", "completion"])
        Form(kind='prompts', columns=('prompt', 'completion'))
        >>> form_of(["question", "reply"], {"prompt": "question", "completion": "reply"}).kind
        'prompts'
        >>> form_of(["question", "label"])
    """
    named = named or {}
    if "messages" in named:
        return Form("chat", (named["messages"],))
    if "text" in named:
        return Form("text", (named["text"],))
    free = {name.lower(): name for name in reversed(columns)}
    if not named:
        for name in MESSAGES:
            if name in free:
                return Form("chat", (free[name],))
    for prompt, completion in PAIRS:
        pair = named.get("prompt", free.get(prompt)), named.get("completion", free.get(completion))
        if pair[0] is not None and pair[1] is not None:
            return Form("prompts", (pair[0], pair[1]))
    if not named:
        for name in TEXT:
            if name in free:
                return Form("text", (free[name],))
    return None


def is_unlabelled(columns: Sequence[str]) -> bool:
    """Whether these columns are prompts, a chat, or text with nothing but a number next to it."""
    form = form_of(columns)
    if form is None or form.kind != "text":
        return form is not None
    return {name.lower() for name in columns} <= {*_NUMBERS, form.columns[0].lower()}


def find_form(table: Table, named: Mapping[str, str]) -> Form:
    """The form of a table; an error if columns are missing or cannot be guessed."""
    for name, column in named.items():
        if column not in table.columns:
            raise DataError(
                f"{table.path}: --{name}-column must be one of {table.listed}, got {column!r}"
            )
    form = form_of(table.columns, named)
    if form is None:
        raise DataError(
            f"{table.path}: must have a column messages, the columns prompt and completion, or a "
            f"column text, got {table.listed}; name them with --messages-column, or "
            "--prompt-column and --completion-column, or --text-column"
        )
    return form
