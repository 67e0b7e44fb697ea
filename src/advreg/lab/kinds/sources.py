"""Where data come from: the folder of the data, the Hugging Face hub through the package
`datasets`, and tables of the user's own. Errors say what to do.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_VARIABLE = "ADVREG_DATA"
"""The environment variable that names the folder of the data where no flag does."""


class DataError(ValueError):
    """The data cannot be used as they are; the text names the place and the remedy."""


def data_folder(given: Path | None) -> Path | None:
    """The folder of the data: the given one, else the one that ADVREG_DATA names; None: use the
    hub.
    """
    named = os.environ.get(DATA_VARIABLE)
    return given if given is not None or not named else Path(named)


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
_TABS: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}


@dataclass(frozen=True, slots=True)
class Table:
    """A file as read: its column names, and each row with its number."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...]

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


def table_name(path: Path) -> str:
    """The name of a file without its suffix."""
    return path.name[: -len(_suffix(path))] or path.name


def _file_suffix(path: Path) -> str:
    """The suffix of a table that exists."""
    suffix = _suffix(path)
    require_file(path)
    return suffix


def require_file(path: Path) -> None:
    """Refuse what is not a file."""
    if not path.is_file():
        raise DataError(
            f"{path}: must be a file, got {'a folder' if path.is_dir() else 'nothing'}; check the "
            "path"
        )


def header_of(path: Path) -> tuple[str, ...]:
    """The column names of a csv or tsv file, read without the rest of it; none of other files, or
    where the file cannot be read, of which :func:`read_table` says what is wrong.
    """
    suffix = _file_suffix(path)
    if not suffix.startswith((".csv", ".tsv")):
        return ()
    opened = gzip.open if suffix.endswith(".gz") else open
    dialect = _TABS if suffix.startswith(".tsv") else {}
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            return tuple(name.strip() for name in next(csv.reader(file, **dialect), []))
    except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error):
        return ()


def columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a table as far as its beginning shows them: the header, the keys of the first
    object, or the schema; none where that cannot be read.
    """
    if not _file_suffix(path).startswith((".jsonl", ".parquet")):
        return header_of(path)
    try:
        if path.name.lower().endswith(".parquet"):
            return tuple(importlib.import_module("pyarrow.parquet").read_schema(path).names)
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            return tuple(json.loads(next(filter(str.strip, file), "{}")))
    except (ImportError, ValueError, TypeError, EOFError, OSError, zlib.error):
        return ()


def read_table(path: Path) -> Table:
    """Read a file; rows have the numbers that an editor or a spreadsheet shows."""
    kind = _file_suffix(path).split(".")[1]
    if kind == "parquet":
        table = _read_parquet(path)
    elif kind == "jsonl":
        table = _read_jsonl(path, read_text(path))
    else:
        table = _read_separated(path, read_text(path), tabs=kind == "tsv")
    if not table.rows:
        raise DataError(f"{path}: must hold at least one row of data, got none")
    return table


def read_text(path: Path) -> str:
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


def _read_separated(path: Path, content: str, *, tabs: bool) -> Table:
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
        return Table(path, (), ())
    header = tuple(name.strip() for name in records[0][1])
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path}, row {records[0][0]}: column names must differ, got {repeated[0]!r} more than "
            "once"
        )
    return Table(path, header, tuple(_cells(path, header, *record) for record in records[1:]))


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


def _read_jsonl(path: Path, content: str) -> Table:
    rows = []
    # not splitlines(): U+2028 and its like may stand inside a JSON string
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            rows.append((number, _json_object(path, number, line)))
    return Table(path, tuple(dict.fromkeys(name for _, row in rows for name in row)), tuple(rows))


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
