"""Sealed files: a dataclass as JSON that contains its own checksum, decoded strictly.

* :func:`save_as` is atomic. A reader sees the old file or the new one.
* The text holds its own SHA-256 checksum. :func:`load_as` refuses a file that was damaged or
  edited, that lacks a field, or that holds an unknown field or a value of another type.
* A file of an earlier schema is upgraded in memory, one version at a time, by the functions in its
  dataclass's ``UPGRADES``. The checksum always covers the original text.
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
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from advreg.records.paths import without_paths

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


R = TypeVar("R", bound="DataclassInstance")

Payload = dict[str, Any]
"""A record as JSON holds it, without its checksum."""
Upgrade = Callable[[Payload], Payload]
"""Returns the payload in the next schema, and leaves its argument alone."""

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
    """A record that cannot be read or written; names the file, its line where it has many, the
    field and the remedy.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        field: str | None = None,
        path: Path | None = None,
        line: int | None = None,
    ) -> None:
        self.problem, self.remedy, self.field, self.path = problem, remedy, field, path
        self.line = line
        # keys come from the file: repr escapes what a terminal would obey
        self.subject = problem if field is None else f"{repr(field)[1:-1]} {problem}"
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(f"{place}{self.subject}; {remedy}")

    def at(self, path: Path, line: int | None = None) -> Self:
        """The same error, naming the file and the line."""
        return type(self)(self.problem, self.remedy, field=self.field, path=path, line=line)


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
        cls: a dataclass. The default of its field ``schema`` is the version that is read; its
            ``UPGRADES``, if it has any, map earlier versions to what turns one into the next.

    Raises:
        RecordError: for anything but a whole, unedited record of this or an earlier schema.
        OSError: for a file that is missing or not readable.
    """
    path = Path(path)
    with naming(path):
        return unseal_line(text_of(path), cls)


def text_of(path: Path) -> str:
    """The text of a file; RecordError for what is no file, or not UTF-8."""
    require_file(path)
    # a checkout may have converted the line ends; inside strings they are escaped
    return utf8(path.read_bytes()).replace("\r\n", "\n")


def require_file(path: Path) -> None:
    """Refuse pipes and devices, which a reader could wait for without end."""
    if path.exists() and not path.is_file():
        problem = "is not a regular file"
        raise RecordError(problem, "give a file that advreg wrote", path=path)


def utf8(content: bytes) -> str:
    """Decode the bytes, or name the first that is wrong."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 ({error.reason} at byte {error.start})"
        raise RecordError(problem, UNEDITED) from None


def seal_line(record: DataclassInstance) -> str:
    """The record as one line of text, sealed as a file is; see :mod:`advreg.records.log`."""
    return _sealed(record, separators=(",", ":"))


def unseal_line(text: str, cls: type[R]) -> R:
    """The record in a sealed text; errors as in :func:`load_as`."""
    return unseal(text, lambda payload: cls)


def unseal(text: str, type_of: Callable[[Payload], type[R]]) -> R:
    """The record in a sealed text, whose payload says which type it has."""
    payload = _parsed(text)
    checksum = payload.pop("checksum", None)
    cls = type_of(payload)
    record: R = _decoded(cls, _upgraded(payload, cls))
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
        if abs(value) > sys.float_info.max:
            raise RecordError("must be a number below 1.8e308", "leave it out", field=where)
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
    """A JSON object, but without NaN, overflow, duplicate keys and lone surrogates."""

    def whole(digits: str) -> int:
        if math.isinf(float(digits)):
            raise ValueError(f"{digits[:20]}… is out of range")
        return int(digits)

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        value = json.loads(text, parse_int=whole, object_pairs_hook=entries)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not valid JSON ({error})", UNEDITED) from None
    if not isinstance(value, dict):
        raise RecordError(f"must be an object, got {shown(value)}", UNEDITED, field="record")
    return value


def _upgraded(payload: Payload, cls: Any) -> Payload:
    """The payload in the schema of the class, by one upgrade for each version in between."""
    upgrades: Mapping[int, Upgrade] = getattr(cls, "UPGRADES", {})
    schema, newest = payload.get("schema"), cls.schema
    if type(schema) is not int:  # reported with the other fields
        return payload
    oldest = min(upgrades, default=newest)
    if not oldest <= schema <= newest:
        expected = newest if oldest == newest else f"{oldest} to {newest}"
        old = "read it with the advreg that wrote it, or repeat the run"
        remedy = "update advreg" if schema > newest else old
        raise RecordError(f"must be {expected}, got {schema}", remedy, field="schema")
    try:
        for version in range(schema, newest):
            payload = upgrades[version](payload) | {"schema": version + 1}
    except (AttributeError, KeyError, TypeError) as error:
        problem = f"is not a whole record of schema {version} ({error!r})"
        raise RecordError(problem, UNEDITED, field="record") from None
    return payload


def _decoded(hint: Any, value: Any, where: str = "") -> Any:
    """Check a JSON value against a type, and build the dataclasses in it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # only ever "… | None"
        return None if value is None else _decoded(arguments[0], value, where)
    if hint is Any:
        return value
    is_record = dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)
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
    for name in sorted(getattr(cls, "__required_keys__", hints.keys()) - values.keys()):
        raise RecordError("is missing", UNEDITED, field=prefix + name)
    for name in sorted(values.keys() - hints.keys()):
        raise RecordError("is not a known field", UNEDITED, field=prefix + name)
    return cls(
        **{name: _decoded(hints[name], item, prefix + name) for name, item in values.items()}
    )


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}


def shown(value: object) -> str:
    """A value and its type, short enough for an error."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
