"""Which columns of a table hold the text, its pair and the label.

Columns that are not named are guessed by name, in this order and regardless of case:

* label: the first of `LABEL_NAMES` there is; else, in a table of two columns of which one has a
  text's name, the other;
* text and pair: the first of `PAIRED_NAMES` with both columns in the table; else the first of
  `TEXT_NAMES`, with the first of `PAIR_NAMES` as its pair if there is one; else, in a table of two
  columns, the one that is not the label. A pair is guessed only where the text is guessed too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advreg.lab.kinds.sources import DataError, Table

LABEL_NAMES = (
    *("label", "labels", "target", "class", "score", "y"),
    *("sentiment", "rating", "stars", "category", "intent", "topic", "emotion", "label_text"),
)
PAIRED_NAMES = (
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "answer"),
    ("question", "sentence"),
)
TEXT_NAMES = (
    *("text", "sentence", "text_a", "text1", "sentence1", "premise", "question", "question1"),
    *("review", "content", "message", "tweet", "comment", "utterance", "body"),
)
PAIR_NAMES = ("text_b", "text2", "sentence2", "hypothesis", "question2", "answer")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are used."""

    text: str
    pair: str | None
    label: str


def find_columns(table: Table, text: str | None, pair: str | None, label: str | None) -> Columns:
    """The named columns, and guesses for the others."""
    free = _free(table, {"text": text, "pair": pair, "label": label})
    if label is None:
        label = _guess(table, free, "label", (*LABEL_NAMES, *_other(table, free)))
        free = {low: name for low, name in free.items() if name != label}
    if text is None:
        text, pair = _guess_texts(table, free, pair)
    return Columns(text, pair, label)


def find_texts(table: Table, text: str | None, pair: str | None) -> tuple[str, str | None]:
    """The columns of the text and its pair, in a table that need not have labels."""
    free = _free(table, {"text": text, "pair": pair})
    if text is not None:
        return text, pair
    if len(free) == 1:
        return next(iter(free.values())), pair
    return _guess_texts(table, free, pair)


def _free(table: Table, given: Mapping[str, str | None]) -> dict[str, str]:
    """The columns that are not named, by their names in lower case."""
    named = {what: name for what, name in given.items() if name is not None}
    for what, name in named.items():
        if name not in table.columns:
            raise DataError(
                f"{table.path}: --{what}-column must be one of {table.listed}, got {name!r}"
            )
    if len(set(named.values())) < len(named):
        shown = ", ".join(map(repr, named.values()))
        raise DataError(f"{' and '.join(named)} must be different columns, got {shown}")
    return {name.lower(): name for name in reversed(table.columns) if name not in named.values()}


def _other(table: Table, free: Mapping[str, str]) -> Sequence[str]:
    """The one column that is left when the text is named, or of two the one that is no text."""
    others = [name for name in free if name not in (*TEXT_NAMES, *PAIR_NAMES)]
    texts = len(table.columns) - len(others)
    return others if len(others) == 1 and texts > 0 and len(free) <= 2 else ()


def _guess_texts(table: Table, free: Mapping[str, str], pair: str | None) -> tuple[str, str | None]:
    """The text column and, unless it is named, the column paired with it."""
    partners = free if pair is None else {pair.lower(): pair}
    for first, second in PAIRED_NAMES:
        if first in free and second in partners:
            return free[first], partners[second]
    if len(table.columns) == 2 and len(free) == 1 and not free.keys() & set(TEXT_NAMES):
        return next(iter(free.values())), None
    text = _guess(table, free, "text", TEXT_NAMES)
    return text, pair or next((free[name] for name in PAIR_NAMES if name in free), None)


def _guess(table: Table, free: Mapping[str, str], what: str, names: Sequence[str]) -> str:
    """The first of the names that is free."""
    for name in names:
        if name in free:
            return free[name]
    raise DataError(
        f"{table.path}: the {what} column must be named with --{what}-column or be called one of "
        f"{', '.join(names)}, got the columns {table.listed}; is the first row the header?"
    )
