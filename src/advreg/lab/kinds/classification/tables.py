"""Labelled texts from the user's own table: csv, tsv, jsonl (each also gzipped) or parquet.

Columns, where they are not named, are guessed by name, in this order and regardless of case:

* label: the first of `LABEL_NAMES` there is;
* text and pair: the first of `PAIRED_NAMES` of which both are there; else the first of
  `TEXT_NAMES`, with the first of `PAIR_NAMES` as its pair if there is one; else, in a table of two
  columns, the one that is not the label. A pair is guessed only where the text is guessed too.

The task is told from the labels of both files together:

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


@dataclass(frozen=True, slots=True)
class _Records:
    """The used columns of a table; labels are still names or numbers, not yet class numbers."""

    path: Path
    rows: tuple[int, ...]
    texts: tuple[tuple[str, str | None], ...]
    labels: tuple[Label, ...]


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
    train = Path(train)
    table = read_table(train)
    columns = _find_columns(table, text, pair, label)
    parts = [_records(table, columns)]
    if dev is not None:
        parts.append(_records(read_table(Path(dev)), columns))
    labels = _class_names(parts)
    splits = [_examples(records, labels) for records in parts]
    if dev is None:
        splits = _split(splits[0], labels, dev_fraction, seed, train)
    dev_source = f"{train} (held out)" if dev is None else str(dev)
    return make_text_data(
        table_name(train),
        splits[0],
        splits[1],
        labels,
        train_source=str(train),
        dev_source=dev_source,
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


def _find_columns(table: Table, text: str | None, pair: str | None, label: str | None) -> _Columns:
    """The named columns, and guesses for the others."""
    for flag, name in (("--text-column", text), ("--pair-column", pair), ("--label-column", label)):
        if name is not None and name not in table.columns:
            raise DataError(f"{table.path}: {flag} must be one of {table.listed}, got {name!r}")
    named = [name for name in (text, pair, label) if name is not None]
    if len(set(named)) < len(named):
        raise DataError(
            f"text, pair and label must be different columns, got {', '.join(map(repr, named))}"
        )
    free = {name.lower(): name for name in reversed(table.columns) if name not in named}
    if label is None:
        label = next((free.pop(name) for name in LABEL_NAMES if name in free), None)
    if label is None:
        raise _no_guess(table, "label", LABEL_NAMES)
    if text is None:
        text, pair = _guess_texts(table, free, pair)
    return _Columns(text, pair, label)


def _guess_texts(table: Table, free: dict[str, str], pair: str | None) -> tuple[str, str | None]:
    """The text column and, unless it is named, the column paired with it."""
    for first, second in PAIRED_NAMES:
        partner = free.get(second) if pair is None else pair
        if first in free and partner is not None and partner.lower() == second:
            return free[first], partner
    text = next((free[name] for name in TEXT_NAMES if name in free), None)
    if text is not None:
        return text, pair or next((free[name] for name in PAIR_NAMES if name in free), None)
    if len(table.columns) == 2 and len(free) == 1:
        return next(iter(free.values())), None
    raise _no_guess(table, "text", TEXT_NAMES)


def _no_guess(table: Table, what: str, names: Sequence[str]) -> DataError:
    return DataError(
        f"{table.path}: the {what} column must be named with --{what}-column or be called one of "
        f"{', '.join(names)}, got the columns {table.listed}; is the first row the header?"
    )


def _records(table: Table, columns: _Columns) -> _Records:
    """The table's used columns, each cell checked for its type."""
    for name in (columns.text, columns.pair, columns.label):
        if name is not None and name not in table.columns:
            raise DataError(
                f"{table.path}: must have a column {name!r} like the training table, got "
                f"{table.listed}"
            )
    rows, texts, labels = [], [], []
    for number, cells in table.rows:
        place = f"{table.path}, row {number}"
        pair = None if columns.pair is None else _text(cells.get(columns.pair), columns.pair, place)
        rows.append(number)
        texts.append((_text(cells.get(columns.text), columns.text, place), pair))
        labels.append(_label(cells.get(columns.label), columns.label, place))
    return _Records(table.path, tuple(rows), tuple(texts), tuple(labels))


def _text(value: object, column: str, place: str) -> str:
    if value is None:
        raise DataError(
            f"{place}: {column} must not be empty, got nothing; fill it in or drop the row"
        )
    if not isinstance(value, str):
        raise DataError(f"{place}: {column} must be a text, got {value!r}; is it the right column?")
    return value


def _label(value: object, column: str, place: str) -> Label:
    """A name as a string; anything that reads as a number as an int where it is whole, else as a
    float.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(
            f"{place}: {column} must not be empty, got {value!r}; fill it in or drop the row"
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = _number(value)
    if isinstance(value, str | int):
        return value
    if not isinstance(value, float):
        raise DataError(
            f"{place}: {column} must be a name or a number, got {value!r}; is it the right column?"
        )
    if not math.isfinite(value):
        raise DataError(
            f"{place}: {column} must be a finite number, got {value}; fill it in or drop the row"
        )
    return int(value) if value.is_integer() else value


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


def _class_names(parts: Sequence[_Records]) -> tuple[str, ...] | None:
    """The class names in the order of their numbers, or None where the labels are scores."""
    first: dict[Label, str] = {}
    for records in parts:
        for row, label in zip(records.rows, records.labels, strict=True):
            first.setdefault(label, f"{records.path}, row {row}")
    names = sorted(label for label in first if isinstance(label, str))
    numbers = sorted(label for label in first if not isinstance(label, str))
    if names and numbers:
        raise DataError(
            f"labels must be all names or all numbers, got {names[0]!r} ({first[names[0]]}) and "
            f"{numbers[0]!r} "
            f"({first[numbers[0]]}); spell the numbers out or correct the rows"
        )
    if names:
        return tuple(names)
    if len(numbers) <= MAX_NUMBERED_CLASSES and all(isinstance(number, int) for number in numbers):
        return tuple(map(str, numbers))
    return None


def _examples(records: _Records, labels: tuple[str, ...] | None) -> list[Example]:
    """The records as examples; classes become numbers."""
    number = {name: index for index, name in enumerate(labels or ())}
    examples = [
        Example(text, pair, float(label) if labels is None else number[str(label)])
        for (text, pair), label in zip(records.texts, records.labels, strict=True)
    ]
    check_examples(examples, labels, str(records.path), records.rows)
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
