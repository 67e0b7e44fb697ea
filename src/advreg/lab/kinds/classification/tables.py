"""Labelled texts from the user's own tables; see :mod:`.columns`.

The labels of both files together decide the task, unless the user does:

* names (nothing that reads as a number; true and false are names) are classes, in alphabetical
  order;
* whole numbers with at most `MAX_NUMBERED_CLASSES` different values are classes, in numerical
  order; with more, they may be classes or scores, and the user must say which;
* other numbers are scores, and the task is regression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from advreg.lab.kinds.classification.columns import Columns, find_columns
from advreg.lab.kinds.classification.textdata import (
    Example,
    TextData,
    check_examples,
    make_text_data,
)
from advreg.lab.kinds.sources import DataError, Table, header_of, read_table, table_name

MAX_NUMBERED_CLASSES = 20

Label = str | int | float
LabelKind = Literal["classification", "regression"]


class _Row(NamedTuple):
    """The used cells of a row; the label is still a name or a number, not yet a class number."""

    number: int
    text: str
    pair: str | None
    label: Label


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a file, and how many were dropped."""

    path: Path
    rows: Sequence[_Row]
    dropped: int = 0

    @property
    def numbers(self) -> list[int]:
        return [row.number for row in self.rows]


def load_tables(
    train: Path,
    dev: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: LabelKind | None = None,
    drop_empty: bool = False,
    dev_fraction: float = 0.1,
    seed: int = 0,
) -> TextData:
    """Read a training and a development table; without the latter, hold out `dev_fraction` of the
    former, of each class alike.

    Args:
        train, dev: files; see :func:`~advreg.lab.kinds.sources.read_table`.
        text, pair, label: columns; what is not named is guessed.
        kind: whether the labels are classes or scores; by default the labels decide.
        drop_empty: leave rows without a text or a label out; otherwise they are refused.
        dev_fraction: at least one row is held out, but never the last example of a class.
        seed: decides which.
    """
    if not 0 < dev_fraction < 1:
        raise DataError(f"dev_fraction must be between 0 and 1, both excluded, got {dev_fraction}")
    tables = [read_table(path) for path in (train, dev) if path is not None]
    columns = find_columns(tables[0], text, pair, label)
    parts = [_part(table, columns, drop_empty) for table in tables]
    labels, reason = _class_names(parts, kind)
    splits = [_examples(part, labels) for part in parts]
    name, sources = table_name(train), [str(part.path) for part in parts]
    data = make_text_data(
        name,
        splits[0],
        splits[-1],
        labels,
        train_source=sources[0],
        dev_source=sources[-1],
        rows=parts[-1].numbers,
    )
    dropped = {"dropped_rows": sum(part.dropped for part in parts)} if drop_empty else {}
    data = replace(
        data,
        notes=(
            *(note for table in tables for note in table.notes),
            *(_dropped_note(part) for part in parts if part.dropped),
            f"{name}: {_named(columns)}; {reason}",
        ),
        details={"columns": asdict(columns), **dropped},
    )
    return data if dev is not None else _held_out(data, dev_fraction, seed, train)


def check_columns(
    path: Path, text: str | None = None, pair: str | None = None, label: str | None = None
) -> None:
    """Refuse a file that is not there and columns that it does not have, by the header of a csv or
    tsv file; columns of other files are checked when these are read.
    """
    names = header_of(path)
    if names:
        find_columns(Table(path, names), text, pair, label)


def _named(columns: Columns) -> str:
    """Which columns are used, in words."""
    used = {"text": columns.text, "pair": columns.pair, "label": columns.label}
    return ", ".join(f"{what} in column '{name}'" for what, name in used.items() if name)


def _held_out(data: TextData, fraction: float, seed: int, path: Path) -> TextData:
    """The data with a part of the training samples as dev, of each class alike; said and
    recorded.
    """
    count, classes = len(data.train), len({example.label for example in data.train})
    most = count - (1 if data.labels is None else classes)
    if most < 1:
        raise DataError(
            f"{path}: must hold more than one example "
            f"{'' if data.labels is None else 'of some class '}to hold some out, "
            f"got {count} in all; add rows or give a development file"
        )
    rows = min(max(1, round(fraction * count)), most)
    held = data.held_out(fraction, seed, rows)
    alike = "" if data.labels is None else ", of each class alike"
    note = f"{data.name}: no --dev, so {rows} of {count} rows are held out to evaluate on{alike}"
    details: Mapping[str, Any] = {
        **data.details,
        "dev_from_train": {"rows": rows, "of": count, "seed": seed},
    }
    return replace(held, notes=(*data.notes, note), details=details)


# ---- cells


def _part(table: Table, columns: Columns, drop_empty: bool) -> _Part:
    """The table's used columns, each cell checked for its type."""
    used = [name for name in (columns.text, columns.pair, columns.label) if name is not None]
    for name in used:
        if name not in table.columns:
            raise DataError(
                f"{table.path}: must have a column {name!r} like the training table, got "
                f"{table.listed}"
            )
    full = [
        (number, cells)
        for number, cells in table.rows
        if not (drop_empty and any(_is_empty(cells.get(name)) for name in used))
    ]
    if not full:
        raise DataError(f"{table.path}: must hold a row with text and label, got none")
    rows = [_row(cells, columns, number, table.path) for number, cells in full]
    return _Part(table.path, rows, len(table.rows) - len(full))


def _row(cells: Mapping[str, Any], columns: Columns, number: int, path: Path) -> _Row:
    place = f"{path}, row {number}"
    pair = None if columns.pair is None else _text(cells, columns.pair, place)
    label = _label(cells, columns.label, place)
    return _Row(number, _text(cells, columns.text, place), pair, label)


def _dropped_note(part: _Part) -> str:
    return f"{part.path}: {part.dropped} rows without a text or a label are left out"


def _is_empty(value: Any) -> bool:
    """Whether a cell holds nothing: no value, blanks alone, or not a number."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def _text(cells: Mapping[str, Any], column: str, place: str) -> str:
    value = cells.get(column)
    if value is None:
        raise _empty(column, "nothing", place)
    if not isinstance(value, str):
        raise DataError(f"{place}: {column} must be a text, got {value!r}; is it the right column?")
    if not value.strip():
        raise _empty(column, repr(value), place)
    return value


def _empty(column: str, got: str, place: str) -> DataError:
    return DataError(
        f"{place}: {column} must not be empty, got {got}; fill it in or drop the row "
        "(--drop-empty drops all such rows)"
    )


def _label(cells: Mapping[str, Any], column: str, place: str) -> Label:
    """A name as a string; anything that reads as a number as an int where it is whole, else as a
    float.
    """
    given = cells.get(column)
    if given is None or (isinstance(given, str) and not given.strip()):
        raise _empty(column, repr(given), place)
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


def _class_names(
    parts: Sequence[_Part], kind: LabelKind | None
) -> tuple[tuple[str, ...] | None, str]:
    """The class names in the order of their numbers, or None where the labels are scores; and
    why.
    """
    first: dict[Label, str] = {}
    for part in parts:
        for row in part.rows:
            first.setdefault(row.label, f"{part.path}, row {row.number}")
    names = sorted(label for label in first if isinstance(label, str))
    numbers = sorted(label for label in first if not isinstance(label, str))
    if names and numbers:
        raise DataError(
            f"labels must be all names or all numbers, got {names[0]!r} ({first[names[0]]}) and "
            f"{numbers[0]!r} ({first[numbers[0]]}); spell the numbers out or correct the rows"
        )
    if names and kind == "regression":
        raise DataError(
            f"labels must be numbers with --kind regression, got {names[0]!r} ({first[names[0]]}); "
            "is it the right column?"
        )
    chosen, reason = (kind, "--kind says so") if kind else _told(parts[0].path, names, numbers)
    classes = tuple(names or map(str, numbers)) if chosen == "classification" else None
    return classes, f"{chosen}, because {reason}"


def _told(
    path: Path, names: Sequence[str], numbers: Sequence[int | float]
) -> tuple[LabelKind, str]:
    """What the labels decide, and by what."""
    if names:
        return "classification", f"the labels are {len(names)} names"
    if not all(type(each) is int for each in numbers):
        return "regression", "the labels are not whole numbers"
    if len(numbers) > MAX_NUMBERED_CLASSES:
        raise DataError(
            f"{path}: {len(numbers)} different whole numbers as labels may be classes or scores; "
            "add --kind classification or --kind regression"
        )
    return (
        "classification",
        f"the labels are {len(numbers)} different whole numbers (otherwise add --kind regression)",
    )


def _examples(part: _Part, labels: tuple[str, ...] | None) -> list[Example]:
    """The rows as examples; classes become numbers."""
    number = {name: index for index, name in enumerate(labels or ())}
    examples = [
        Example(row.text, row.pair, float(row.label) if labels is None else number[str(row.label)])
        for row in part.rows
    ]
    check_examples(examples, labels, str(part.path), part.numbers)
    return examples
