"""Labelled texts from the user's own table: csv, tsv, jsonl (each also gzipped) or parquet.

Columns, where they are not named, are guessed by name, in this order and regardless of case:

* label: the first of `LABEL_NAMES` there is;
* text and pair: the first of `PAIRED_NAMES` with both columns in the table; else the first of
  `TEXT_NAMES`, with the first of `PAIR_NAMES` as its pair if there is one; else, in a table of two
  columns, the one that is not the label. A pair is guessed only where the text is guessed too.

The labels of both files together decide the task:

* names (nothing that reads as a number; true and false are names) are classes, in alphabetical
  order;
* whole numbers with at most `MAX_NUMBERED_CLASSES` different values are classes, in numerical
  order;
* all other numbers are scores, and the task is regression. (For more classes than that, write them
  as names.)

Row numbers in errors are those an editor or spreadsheet shows (the header is row 1); in parquet the
first is row 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from advreg.lab.kinds.classification.textdata import (
    Example,
    TextData,
    check_examples,
    make_text_data,
)
from advreg.lab.kinds.sources import DataError, Table, header_of, read_table, table_name

LABEL_NAMES = ("label", "labels", "target", "class", "score", "y")
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
    "text", "sentence", "text_a", "text1", "sentence1", "premise", "question", "question1",
    "review", "content",
)  # fmt: skip
PAIR_NAMES = ("text_b", "text2", "sentence2", "hypothesis", "question2", "answer")
MAX_NUMBERED_CLASSES = 20

Label = str | int | float


@dataclass(frozen=True, slots=True)
class _Columns:
    text: str
    pair: str | None
    label: str


class _Row(NamedTuple):
    """The used cells of a row; the label is still a name or a number, not yet a class number."""

    number: int
    text: str
    pair: str | None
    label: Label


def load_tables(
    train: Path,
    dev: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    dev_fraction: float = 0.1,
    seed: int = 0,
) -> TextData:
    """Read a training and a development table; without the latter, hold out `dev_fraction` of the
    former.

    `text`, `pair` and `label` name columns; what is not named is guessed (see the module's text).
    The held-out rows depend on `seed` alone, are at least one, and never take the last example of a
    class out of training.
    """
    if not 0 < dev_fraction < 1:
        raise DataError(f"dev_fraction must be between 0 and 1, both excluded, got {dev_fraction}")
    tables = [read_table(Path(path)) for path in (train, dev) if path is not None]
    columns = _find_columns(tables[0], text, pair, label)
    parts = [(table.path, _rows(table, columns)) for table in tables]
    labels = _class_names(parts)
    splits = [_examples(path, rows, labels) for path, rows in parts]
    source = tables[0].path
    if len(splits) == 1:
        splits = _split(splits[0], labels, dev_fraction, seed, source)
    return make_text_data(
        table_name(source),
        splits[0],
        splits[1],
        labels,
        train_source=str(source),
        dev_source=f"{source} (held out)" if dev is None else str(dev),
    )


def check_columns(
    path: Path, text: str | None = None, pair: str | None = None, label: str | None = None
) -> None:
    """Refuse a file that is not there and columns that it does not have, by the header of a csv or
    tsv file; columns of other files are checked when these are read.
    """
    names = header_of(path)
    if names:
        _find_columns(Table(path, names, ()), text, pair, label)


# ---- columns


def _find_columns(table: Table, text: str | None, pair: str | None, label: str | None) -> _Columns:
    """The named columns, and guesses for the others."""
    given = {"text": text, "pair": pair, "label": label}
    named = {what: name for what, name in given.items() if name is not None}
    for what, name in named.items():
        if name not in table.columns:
            raise DataError(
                f"{table.path}: --{what}-column must be one of {table.listed}, got {name!r}"
            )
    if len(set(named.values())) < len(named):
        shown = ", ".join(map(repr, named.values()))
        raise DataError(f"text, pair and label must be different columns, got {shown}")
    free = {name.lower(): name for name in reversed(table.columns) if name not in named.values()}
    if label is None:
        label = _guess(table, free, "label", LABEL_NAMES)
        free = {low: name for low, name in free.items() if name != label}
    if text is None:
        text, pair = _guess_texts(table, free, pair)
    return _Columns(text, pair, label)


def _guess_texts(table: Table, free: dict[str, str], pair: str | None) -> tuple[str, str | None]:
    """The text column and, unless it is named, the column paired with it."""
    partners = free if pair is None else {pair.lower(): pair}
    for first, second in PAIRED_NAMES:
        if first in free and second in partners:
            return free[first], partners[second]
    if len(table.columns) == 2 and len(free) == 1 and not free.keys() & set(TEXT_NAMES):
        return next(iter(free.values())), None
    text = _guess(table, free, "text", TEXT_NAMES)
    return text, pair or next((free[name] for name in PAIR_NAMES if name in free), None)


def _guess(table: Table, free: dict[str, str], what: str, names: Sequence[str]) -> str:
    """The first of the names that is free."""
    for name in names:
        if name in free:
            return free[name]
    raise DataError(
        f"{table.path}: the {what} column must be named with --{what}-column or be called one of "
        f"{', '.join(names)}, got the columns {table.listed}; is the first row the header?"
    )


# ---- cells


def _rows(table: Table, columns: _Columns) -> list[_Row]:
    """The table's used columns, each cell checked for its type."""
    for name in (columns.text, columns.pair, columns.label):
        if name is not None and name not in table.columns:
            raise DataError(
                f"{table.path}: must have a column {name!r} like the training table, got "
                f"{table.listed}"
            )
    rows = []
    for number, cells in table.rows:
        place = f"{table.path}, row {number}"
        pair = None if columns.pair is None else _text(cells, columns.pair, place)
        label = _label(cells, columns.label, place)
        rows.append(_Row(number, _text(cells, columns.text, place), pair, label))
    return rows


def _text(cells: dict[str, Any], column: str, place: str) -> str:
    value = cells.get(column)
    if value is None:
        raise DataError(
            f"{place}: {column} must not be empty, got nothing; fill it in or drop the row"
        )
    if not isinstance(value, str):
        raise DataError(f"{place}: {column} must be a text, got {value!r}; is it the right column?")
    return value


def _label(cells: dict[str, Any], column: str, place: str) -> Label:
    """A name as a string; anything that reads as a number as an int where it is whole, else as a
    float.
    """
    given = cells.get(column)
    if given is None or (isinstance(given, str) and not given.strip()):
        raise DataError(
            f"{place}: {column} must not be empty, got {given!r}; fill it in or drop the row"
        )
    if isinstance(given, bool):
        return str(given).lower()
    value = _number(given) if isinstance(given, str) else given
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{place}: {column} must be a name or a number, got {value!r}; is it the right column?"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(
            f"{place}: {column} must be a finite number, got {value}; fill it in or drop the row"
        )
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(word: str) -> str | int | float:
    """The number a word spells, or else the word itself, stripped."""
    word = word.strip()
    if "_" in word:  # Python reads 1_000 as a number; a table means a name
        return word
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


# ---- the task


def _class_names(parts: Sequence[tuple[Path, Sequence[_Row]]]) -> tuple[str, ...] | None:
    """The class names in the order of their numbers, or None where the labels are scores."""
    first: dict[Label, str] = {}
    for path, rows in parts:
        for row in rows:
            first.setdefault(row.label, f"{path}, row {row.number}")
    names = sorted(label for label in first if isinstance(label, str))
    numbers = sorted(label for label in first if not isinstance(label, str))
    if names and numbers:
        raise DataError(
            f"labels must be all names or all numbers, got {names[0]!r} ({first[names[0]]}) and "
            f"{numbers[0]!r} ({first[numbers[0]]}); spell the numbers out or correct the rows"
        )
    are_classes = len(numbers) <= MAX_NUMBERED_CLASSES and all(
        type(each) is int for each in numbers
    )
    return tuple(names or map(str, numbers)) if names or are_classes else None


def _examples(path: Path, rows: Sequence[_Row], labels: tuple[str, ...] | None) -> list[Example]:
    """The rows as examples; classes become numbers."""
    number = {name: index for index, name in enumerate(labels or ())}
    examples = [
        Example(row.text, row.pair, float(row.label) if labels is None else number[str(row.label)])
        for row in rows
    ]
    check_examples(examples, labels, str(path), [row.number for row in rows])
    return examples


def _split(
    examples: Sequence[Example],
    labels: Sequence[str] | None,
    fraction: float,
    seed: int,
    path: Path,
) -> list[list[Example]]:
    """Training and held-out examples, both in the order of the file."""
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    wanted = max(1, round(fraction * len(examples)))
    groups = [None if labels is None else examples[index].label for index in order]
    held = set(list(_after_first(order, groups))[:wanted])
    if not held:
        raise DataError(
            f"{path}: must hold more than one example "
            f"{'' if labels is None else 'of some class '}to hold some out, "
            f"got {len(examples)} in all; add rows or give a development file"
        )
    kept = [example for index, example in enumerate(examples) if index not in held]
    return [kept, [examples[index] for index in sorted(held)]]


def _after_first(order: Sequence[int], groups: Sequence[int | float | None]) -> Iterator[int]:
    """Each index but the first of its group: all of them can be held out, and no class is left
    empty.
    """
    seen: set[int | float | None] = set()
    for index, group in zip(order, groups, strict=True):
        if group in seen:
            yield index
        seen.add(group)
