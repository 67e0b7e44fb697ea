"""Sealed files: a dataclass as JSON that contains its own checksum, decoded strictly.

* :func:`save_as` is atomic. A reader sees the old file or the new one.
* The text holds its own SHA-256 checksum. :func:`load_as` refuses a file that was damaged or
  edited, that lacks a field, or that holds an unknown field or a value of another type.
* NaN and the infinities are not JSON. They are written as ``null``: "not a finite number".
* Absolute paths are shortened to their last part (``…/roberta-base``) unless ``keep_paths=True``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import secrets
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from advreg.records.paths import without_paths

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "LATER",
    "UNEDITED",
    "RecordError",
    "load_as",
    "naming",
    "portable",
    "save_as",
    "seal_line",
    "shown",
    "sync_folder",
    "unseal_line",
    "without_surrogates",
    "write_text",
]

R = TypeVar("R", bound="DataclassInstance")

LATER = types.MappingProxyType({"later": True})
"""Metadata of a field that older records lack; they are read with its default."""

UNEDITED = "records are not edited by hand: restore the file or repeat the run"
_BLANK_CHECKSUM = "0" * 64
_KINDS: Mapping[Any, tuple[str, tuple[type, ...]]] = {  # the JSON values of a type
    dict: ("an object", (dict,)),
    list: ("a list", (list,)),
    float: ("a number", (int, float)),
    int: ("a whole number", (int,)),
    str: ("a text", (str,)),
    bool: ("true or false", (bool,)),
}


class RecordError(ValueError):
    """A record that cannot be read or written; names the file, the field and the remedy."""

    def __init__(
        self, problem: str, remedy: str, *, field: str | None = None, path: Path | None = None
    ) -> None:
        self.problem, self.remedy, self.field, self.path = problem, remedy, field, path
        subject = problem if field is None else f"{field} {problem}"
        super().__init__(f"{subject}; {remedy}" if path is None else f"{path}: {subject}; {remedy}")

    def at(self, path: Path) -> RecordError:
        """The same error, naming the file."""
        return RecordError(self.problem, self.remedy, field=self.field, path=path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to any RecordError raised inside."""
    try:
        yield
    except RecordError as error:
        raise error.at(path) from None


# ---- files and lines


def save_as(
    path: str | os.PathLike[str], record: DataclassInstance, *, keep_paths: bool = False
) -> None:
    """Write a record to ``path`` atomically; missing folders are created."""
    path = Path(path)
    with naming(path):
        text = _sealed(record, keep_paths, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def load_as(path: str | os.PathLike[str], cls: type[R]) -> R:
    """Read a record that :func:`save_as` wrote.

    Args:
        path: the file.
        cls: a dataclass; the default of its field ``schema`` is the version that is read.

    Raises:
        RecordError: for anything but a whole, unedited record of this schema.
        OSError: for a file that is missing or not readable.
    """
    path = Path(path)
    with naming(path):
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise RecordError(
                f"is not UTF-8 ({error.reason} at byte {error.start})", UNEDITED
            ) from None
        # a checkout may have converted the line ends; inside strings they are escaped
        return unseal_line(text.replace("\r\n", "\n"), cls)


def seal_line(record: DataclassInstance) -> str:
    """The record as one line of text, sealed as a file is; see :mod:`advreg.records.log`."""
    return _sealed(record, separators=(",", ":"))


def unseal_line(text: str, cls: type[R]) -> R:
    """The record in a sealed text; errors as in :func:`load_as`."""
    payload = _parsed(text)
    checksum = payload.pop("checksum", None)
    _check_schema(payload, cls)
    record: R = _decoded(cls, payload)
    if not isinstance(checksum, str) or not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise RecordError(
            f"must be 64 hexadecimal digits, got {shown(checksum)}", UNEDITED, field="checksum"
        )
    if _digest(text.replace(checksum, _BLANK_CHECKSUM, 1)) != checksum:
        raise RecordError("does not match the content", UNEDITED, field="checksum")
    return record


def _sealed(record: DataclassInstance, keep_paths: bool = False, **layout: Any) -> str:
    """The text, with the checksum of itself (taken with the checksum blank) as its first entry."""
    payload = _payload(record, keep_paths)
    try:
        body = {"checksum": _BLANK_CHECKSUM, **payload}
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, **layout) + "\n"
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise RecordError(f"cannot be written as JSON ({error})", "leave the value out") from None
    return text.replace(_BLANK_CHECKSUM, _digest(text), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: after any failure it holds the old text or the new one."""
    # in the same folder: os.replace is atomic within one file system only
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk: a file renamed in it survives a power cut."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- writing: to plain JSON values


def portable(record: R, *, keep_paths: bool = False) -> R:
    """The record after saving and loading: plain JSON values, finite numbers, shortened paths.

    Raises:
        RecordError: for a value that JSON cannot hold, or that the field's type does not allow.
    """
    built: R = _decoded(type(record), _payload(record, keep_paths))
    return built


def _payload(record: DataclassInstance, keep_paths: bool) -> dict[str, Any]:
    try:
        payload: dict[str, Any] = _plain(record, keep_paths, "")
    except RecursionError:
        raise RecordError(
            "is nested too deeply", "leave out what contains itself", field="record"
        ) from None
    return payload


def _plain(value: Any, keep_paths: bool, where: str) -> Any:
    """Reduce a value to JSON, or name the field that cannot be reduced."""
    if dataclasses.is_dataclass(value):  # asdict would copy tensors
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | PurePath):
        text = without_surrogates(str.__str__(value) if isinstance(value, str) else str(value))
        return text if keep_paths else without_paths(text)
    if isinstance(value, Mapping):
        return {
            _key(key, where): _plain(item, keep_paths, f"{where}.{key}".lstrip("."))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, keep_paths, f"{where}[{index}]") for index, item in enumerate(value)]
    remedy = "convert it (float(), .item(), .tolist(), str()) before it goes into the record"
    raise RecordError(f"must be a JSON value, got {type(value).__name__}", remedy, field=where)


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return without_surrogates(str.__str__(key))
    remedy = "convert the keys to text before they go into the record"
    raise RecordError(
        f"must have keys of type str, got {shown(key)}", remedy, field=where or "record"
    )


def without_surrogates(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode; Python uses them for undecodable bytes in
    arguments and file names.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# ---- reading: strictly, by the types of the fields


def _parsed(text: str) -> dict[str, Any]:
    """A JSON object; unlike json.loads, refuses NaN, overflow and duplicate keys."""

    def constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        value = json.loads(
            text, parse_constant=constant, parse_float=number, object_pairs_hook=entries
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not valid JSON ({error})", UNEDITED) from None
    if not isinstance(value, dict):
        raise RecordError(f"must be an object, got {shown(value)}", UNEDITED, field="record")
    return value


def _check_schema(payload: Mapping[str, Any], cls: Any) -> None:
    schema = payload.get("schema", cls.schema)  # a missing field is reported with the others
    if type(schema) is int and schema != cls.schema:
        old = "read it with the advreg that wrote it, or repeat the run"
        remedy = "update advreg" if schema > cls.schema else old
        raise RecordError(f"must be {cls.schema}, got {schema}", remedy, field="schema")


def _decoded(hint: Any, value: Any, where: str = "") -> Any:
    """Check a JSON value against a type, and build the dataclasses in it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # only ever "… | None"
        return None if value is None else _decoded(arguments[0], value, where)
    if hint is Any:
        return value
    is_record = dataclasses.is_dataclass(hint)
    if origin is Literal:
        expected, fits = f"one of {', '.join(arguments)}", value in arguments
    else:
        expected, accepted = _KINDS[dict if is_record else origin or hint]
        fits = type(value) in accepted  # not isinstance: True is no number here
    if not fits:
        problem = f"must be {expected}, got {shown(value)}"
        raise RecordError(problem, UNEDITED, field=where or "record")
    if is_record:
        return _built(hint, value, f"{where}." if where else "")
    if origin is dict:
        return {key: _decoded(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    if origin is list:
        return [_decoded(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value)]
    return value


def _built(cls: Any, values: dict[str, Any], prefix: str) -> Any:
    hints = _hints(cls)
    later = {field.name for field in dataclasses.fields(cls) if field.metadata.get("later")}
    for name in sorted(hints.keys() - values.keys() - later):
        raise RecordError("is missing", UNEDITED, field=prefix + name)
    for name in sorted(values.keys() - hints.keys()):
        raise RecordError("is not a known field", UNEDITED, field=prefix + name)
    return cls(
        **{name: _decoded(hints[name], item, prefix + name) for name, item in values.items()}
    )


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def shown(value: object) -> str:
    """A value and its type, short enough for an error."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
