"""Where data come from: the folder of the data, and the Hugging Face hub through the package
`datasets`. Errors say what to do.
"""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
