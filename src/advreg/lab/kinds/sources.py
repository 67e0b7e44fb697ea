"""Where data come from: the folder of the data, the Hugging Face hub through the package
`datasets`, and tables of the user's own. Errors say what to do.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

DATA_VARIABLE = "ADVREG_DATA"
"""The environment variable that names the folder of the data where no flag does."""


class DataError(ValueError):
    """The data cannot be used; the text names the place and the remedy."""


def data_folder(given: Path | None) -> Path | None:
    """The folder of the data: the given one, else the one that ADVREG_DATA names; None: use the
    hub.
    """
    named = os.environ.get(DATA_VARIABLE)
    return given if given is not None or not named else Path(named)


def read_text(path: Path, flag: str = "") -> str:
    """The text of a UTF-8 file, plain or as .gz or .xz, without a byte-order mark.

    Args:
        path: of the file.
        flag: what it was given by, for an error if it is not there.
    """
    if not path.is_file():
        file, got = f"{flag} {path}".lstrip(), "a folder" if path.is_dir() else "nothing"
        raise DataError(f"{file}: must be a text file (also .gz or .xz), got {got}; check the path")
    unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix.lower(), bytes)
    try:
        content = unpack(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked: {error}; fetch the file again") from error
    return decoded(content, path)


def decoded(content: bytes, place: Path | str, first: int = 1) -> str:
    """The text of UTF-8 bytes; an error names the place and the line, counted from ``first``."""
    try:
        return content.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + first
        raise DataError(
            f"{place}, line {line}: must be UTF-8, got the byte {content[error.start]:#04x}; "
            "convert it first (iconv -t UTF-8)"
        ) from error


def json_object(line: str, place: str) -> dict[str, Any]:
    """The JSON object in a line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        value = error
    if not isinstance(value, dict):
        why = f" ({value})" if isinstance(value, Exception) else ""
        raise DataError(
            f"{place}: must be a JSON object, got {line.strip()[:40]!r}{why}; correct it"
        )
    return value


def held_out_details(share: float, seed: int, rows: int | None, of: int) -> dict[str, Any]:
    """What a record says of samples that were held out of the training set."""
    return {**({"share": share} if rows is None else {"rows": rows}), "seed": seed, "of": of}


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub: its path, its configuration if it has several, and the
    split's name there.
    """

    path: str
    config: str | None
    split: str


def load_split(task: str, where: HubSplit) -> Any:
    """`datasets.load_dataset`; `task` is the user's name for the data set."""
    try:
        load = importlib.import_module("datasets").load_dataset
    except ImportError as error:
        raise DataError(
            f"task '{task}' is loaded from the Hugging Face hub by the package datasets; install "
            f"advreg[data], or give a folder of files with --data or {DATA_VARIABLE}"
        ) from error
    try:
        return load(where.path, where.config, split=where.split)
    except Exception as error:  # of a dozen types, from four libraries
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"'{where.path}' ({task}, {where.split}) cannot be loaded from the Hugging Face hub: "
            f"{first}. Without a connection, give a folder of files with --data or {DATA_VARIABLE}"
        ) from error


def require_columns(dataset: Any, names: Iterable[str], where: HubSplit, part: str) -> None:
    """Refuse a data set whose columns have changed; `part` is our name of the split."""
    for name in names:
        if name not in dataset.column_names:
            raise DataError(
                f"'{where.path}': {part} must have a column {name!r}, got "
                f"{', '.join(dataset.column_names)}; the hub's data set has changed, give files "
                "with --data"
            )


# ---- tables

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table as read.

    Args:
        path: what errors call it.
        columns: their names.
        rows: each with the number that an editor or a spreadsheet shows (the header is row 1); in
            jsonl that of its line, in parquet the first is row 1.
        notes: what a user should know of how it was read.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def listed(self) -> str:
        """The columns, for errors."""
        return ", ".join(map(repr, self.columns))


def _suffix(path: Path) -> str:
    """The one of `SUFFIXES` the file's name ends in."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise DataError(
        f"{path}: the file name must end in one of {', '.join(SUFFIXES)}, got {path.name!r}; "
        "convert it"
    )


def _kind(path: Path) -> str:
    """The kind of a table that exists, by its suffix."""
    kind = _suffix(path).split(".")[1]
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing"
        raise DataError(f"{path}: must be a file, got {got}; check the path")
    return kind


def table_name(path: Path) -> str:
    """The name of a table without its suffix."""
    return path.name[: -len(_suffix(path))] or path.name


def header_of(path: Path) -> tuple[str, ...]:
    """The column names of a csv or tsv file, read without the rest of it; none of other files, or
    where the file cannot be read, of which :func:`read_table` says what is wrong.
    """
    kind = _kind(path)
    if kind not in ("csv", "tsv"):
        return ()
    try:
        with _opened(path) as file:
            first = file.readline()
            separator = "\t" if kind == "tsv" else separator_of(first)
            header = next(csv.reader([first], delimiter=separator), [])
    except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error):
        return ()
    return tuple(name.strip() for name in header)


def columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a table as far as its beginning shows them: the header, the keys of the first
    object, or the schema; none where that cannot be read.
    """
    kind = _kind(path)
    if kind in ("csv", "tsv"):
        return header_of(path)
    try:
        if kind == "parquet":
            return tuple(importlib.import_module("pyarrow.parquet").read_schema(path).names)
        with _opened(path) as file:
            return tuple(json_object(next(filter(str.strip, file), "{}"), str(path)))
    except (ImportError, ValueError, EOFError, OSError, zlib.error):
        return ()


def _opened(path: Path) -> TextIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def read_table(path: Path) -> Table:
    """Read a file by its suffix; it must hold a row."""
    kind = _kind(path)
    table = _read_parquet(path) if kind == "parquet" else _PARSERS[kind](read_text(path), path)
    return _not_empty(table)


def parse_table(kind: str, text: str, path: Path) -> Table:
    """The table in a text of this kind: csv, tsv or jsonl; errors call it by the path."""
    return _not_empty(_PARSERS[kind](text, path))


def _not_empty(table: Table) -> Table:
    if not table.rows:
        raise DataError(f"{table.path}: must hold at least one row of data, got none")
    return table


def separator_of(header: str) -> str:
    """What separates the columns of a csv file: a comma, unless the header has none.

    Example:
        >>> separator_of("text;label"), separator_of("text,label;b"), separator_of("text")
        (';', ',', ',')
    """
    counts = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in _SEPARATORS}
    most = max(counts, key=lambda mark: counts[mark])
    alone = len(next(csv.reader([header]), [])) < 2
    return most if alone and counts[most] > 1 else ","


def _parse_csv(text: str, path: Path) -> Table:
    separator = separator_of(text.partition("\n")[0])
    note = f"{path}: the columns are separated by {_SEPARATORS.get(separator)}"
    notes = () if separator == "," else (note,)
    return _separated(text, path, notes, delimiter=separator, strict=True)


def _parse_tsv(text: str, path: Path) -> Table:
    """In tsv a quote is a character like any other, as GLUE writes it."""
    return _separated(text, path, (), delimiter="\t", quoting=csv.QUOTE_NONE)


def _separated(text: str, path: Path, notes: tuple[str, ...], **form: Any) -> Table:
    records: list[tuple[int, list[str]]] = []
    number = 0
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), **form), start=1):
            if cells:
                records.append((number, cells))
    except csv.Error as error:
        raise DataError(
            f"{path}, row {number + 1}: must be valid csv, got: {error}; check the quotes"
        ) from error
    if not records:
        return Table(path, ())
    (first, names), *rows = records
    header = tuple(name.strip() for name in names)
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path}, row {first}: column names must differ, got {repeated[0]!r} more than once"
        )
    for number, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, row {number}: must have {len(header)} columns like the header, got "
                f"{len(cells)}; check the separators and quotes of this row"
            )
    named = tuple((number, dict(zip(header, cells, strict=True))) for number, cells in rows)
    return Table(path, header, named, notes)


def _parse_jsonl(text: str, path: Path) -> Table:
    # not splitlines(): U+2028 and its like may stand inside a JSON string
    rows = tuple(
        (number, json_object(line, f"{path}, row {number}"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    )
    return Table(path, tuple(dict.fromkeys(name for _, row in rows for name in row)), rows)


_PARSERS: dict[str, Callable[[str, Path], Table]] = {
    "csv": _parse_csv,
    "tsv": _parse_tsv,
    "jsonl": _parse_jsonl,
}


def _read_parquet(path: Path) -> Table:
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
    return Table(path, tuple(names), tuple(enumerate(rows, start=1)))
