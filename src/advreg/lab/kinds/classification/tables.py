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

import csv
import gzip
import importlib
import io
import json
import math
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.lab.kinds.classification.textdata import (
    Example,
    TextData,
    check_examples,
    make_text_data,
)
from advreg.lab.kinds.sources import DataError

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
_TABS: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")

Label = str | int | float


@dataclass(frozen=True, slots=True)
class _Columns:
    text: str
    pair: str | None
    label: str


@dataclass(frozen=True, slots=True)
class _Table:
    """A file as read: its column names, and each row with its number."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...]


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
    table = _read(train)
    columns = _find_columns(table, text, pair, label)
    parts = [_records(table, columns)]
    if dev is not None:
        parts.append(_records(_read(Path(dev)), columns))
    labels = _class_names(parts)
    splits = [_examples(records, labels) for records in parts]
    if dev is None:
        splits = _split(splits[0], labels, dev_fraction, seed, train)
    dev_source = f"{train} (held out)" if dev is None else str(dev)
    return make_text_data(
        _stem(train), splits[0], splits[1], labels, train_source=str(train), dev_source=dev_source
    )


def check_columns(
    path: Path, text: str | None = None, pair: str | None = None, label: str | None = None
) -> None:
    """Refuse a file that is not there and columns that it does not have, by the header of a csv or
    tsv file; columns of other files are checked when these are read.
    """
    suffix = _file_suffix(path)
    if suffix.startswith((".csv", ".tsv")):
        opened = gzip.open if suffix.endswith(".gz") else open
        dialect = _TABS if suffix.startswith(".tsv") else {}
        try:
            with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
                header = next(csv.reader(file, **dialect), [])
        except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error):
            return  # load_tables says what is wrong with the file
        if header:
            names = tuple(name.strip() for name in header)
            _find_columns(_Table(path, names, ()), text, pair, label)


def _suffix(path: Path) -> str:
    """The one of `SUFFIXES` the file's name ends in."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise DataError(
        f"{path}: the file name must end in one of {', '.join(SUFFIXES)}, got {path.name!r}; "
        "convert it"
    )


def _stem(path: Path) -> str:
    return path.name[: -len(_suffix(path))] or path.name


def _file_suffix(path: Path) -> str:
    """The suffix of a table that exists."""
    suffix = _suffix(path)
    if not path.is_file():
        raise DataError(
            f"{path}: must be a file, got {'a folder' if path.is_dir() else 'nothing'}; check the "
            "path"
        )
    return suffix


def _read(path: Path) -> _Table:
    kind = _file_suffix(path).split(".")[1]
    if kind == "parquet":
        table = _read_parquet(path)
    elif kind == "jsonl":
        table = _read_jsonl(path, _decoded(path))
    else:
        table = _read_separated(path, _decoded(path), tabs=kind == "tsv")
    if not table.rows:
        raise DataError(f"{path}: must hold at least one row of data, got none")
    return table


def _decoded(path: Path) -> str:
    """The file's text, unzipped where its name says so, without a byte-order mark."""
    try:
        content = (
            gzip.decompress(path.read_bytes())
            if path.name.lower().endswith(".gz")
            else path.read_bytes()
        )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: must be a whole gzip file, got: {error}; download or compress it again"
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: must be UTF-8, got byte 0x{error.object[error.start]:02x}; "
            f"save the file as UTF-8 (for instance with iconv)"
        ) from error


def _read_separated(path: Path, content: str, *, tabs: bool) -> _Table:
    """Read csv, with quotes, or tsv, where a quote is a character like any other (as GLUE writes
    it).
    """
    source = io.StringIO(content, newline="")
    reader = csv.reader(source, **_TABS) if tabs else csv.reader(source, strict=True)
    records: list[tuple[int, list[str]]] = []
    try:
        records.extend((number, record) for number, record in enumerate(reader, start=1) if record)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: must be valid csv, got: {error}; check the quotes"
        ) from error
    if not records:
        return _Table(path, (), ())
    header = tuple(name.strip() for name in records[0][1])
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path}, row {records[0][0]}: column names must differ, got {repeated[0]!r} more than "
            "once"
        )
    return _Table(path, header, tuple(_cells(path, header, *record) for record in records[1:]))


def _cells(
    path: Path, header: Sequence[str], row: int, record: Sequence[str]
) -> tuple[int, dict[str, Any]]:
    if len(record) != len(header):
        raise DataError(
            f"{path}, row {row}: must have {len(header)} columns like the header, got "
            f"{len(record)}; "
            f"check the separators and quotes of this row"
        )
    return row, dict(zip(header, record, strict=True))


def _read_jsonl(path: Path, content: str) -> _Table:
    rows = []
    # not splitlines(): U+2028 and its like may stand inside a JSON string
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            rows.append((number, _json_object(path, number, line)))
    return _Table(path, tuple(dict.fromkeys(name for _, row in rows for name in row)), tuple(rows))


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {number}: must be valid JSON, got: {error.msg} at column {error.colno}; "
            f"write one JSON object to a line"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {number}: must be a JSON object, got {line.strip()[:40]}")
    return value


def _read_parquet(path: Path) -> _Table:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path}: reading parquet needs pyarrow, which is not installed; "
            f"pip install pyarrow, or save the table as .csv or .jsonl"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
        names, rows = table.column_names, table.to_pylist()  # here text is decoded
    except (ValueError, OSError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path}: must be a parquet file, got: {error}; write it again") from error
    return _Table(path, tuple(names), tuple(enumerate(rows, start=1)))


def _find_columns(table: _Table, text: str | None, pair: str | None, label: str | None) -> _Columns:
    """The named columns, and guesses for the others."""
    for flag, name in (("--text-column", text), ("--pair-column", pair), ("--label-column", label)):
        if name is not None and name not in table.columns:
            raise DataError(f"{table.path}: {flag} must be one of {_listed(table)}, got {name!r}")
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


def _guess_texts(table: _Table, free: dict[str, str], pair: str | None) -> tuple[str, str | None]:
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


def _no_guess(table: _Table, what: str, names: Sequence[str]) -> DataError:
    return DataError(
        f"{table.path}: the {what} column must be named with --{what}-column or be called one of "
        f"{', '.join(names)}, got the columns {_listed(table)}; is the first row the header?"
    )


def _listed(table: _Table) -> str:
    return ", ".join(map(repr, table.columns))


def _records(table: _Table, columns: _Columns) -> _Records:
    """The table's used columns, each cell checked for its type."""
    for name in (columns.text, columns.pair, columns.label):
        if name is not None and name not in table.columns:
            raise DataError(
                f"{table.path}: must have a column {name!r} like the training table, got "
                f"{_listed(table)}"
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
