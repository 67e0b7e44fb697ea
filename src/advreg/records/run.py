"""Everything about one run, as one JSON file.

A record says what was run (method, task, model, training), where (environment) and what came out
(outcome). Reports are drawn from records alone, so a record is complete, is never half written, and
is never edited:

* :meth:`RunRecord.save` is atomic. A reader sees the old file or the new one.
* The file carries a checksum of its own text; :func:`load` refuses a file that was damaged or
  edited.
* NaN and the infinities are not JSON. They are written as ``null``: "not a finite number".
* Paths of the machine are shortened to their last part (``…/roberta-base``) unless
  ``keep_paths=True``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import secrets
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Literal, TypeVar

__all__ = [
    "SCHEMA",
    "MethodInfo",
    "ModelInfo",
    "Outcome",
    "RecordError",
    "RunRecord",
    "TaskInfo",
    "TrainingInfo",
    "capture_environment",
    "load",
    "load_all",
    "load_as",
    "now",
    "save_as",
    "seal_line",
    "stays_inside",
    "sync_folder",
    "unseal_line",
    "write_text",
]

SCHEMA = 1
"""Version of the file's layout; raised whenever a field is added, removed or changes its meaning.
"""

R = TypeVar("R")

Status = Literal["running", "finished", "failed"]

_UNEDITED = "records are not edited by hand: restore the file or repeat the run"
_BLANK_CHECKSUM = "0" * 64
_LATER = {"later": True}  # marks a field that was thought of later: see later()
_TREE_STATES = {"": None, "clean": False, "dirty": True}  # of ADVREG_TREE
_PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")


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


def later(default: Any) -> Any:
    """A field that records written before it was thought of do not have; what it was then is the
    default.
    """
    return field(default=default, metadata=_LATER)


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """The method and all of its settings."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """The task; ``fingerprint`` identifies the data, ``sizes`` counts the samples per split."""

    name: str
    fingerprint: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The model; ``name`` is a hub name or a path, of which the last part is kept."""

    name: str
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingInfo:
    """How it was trained; ``more`` holds whatever else the recipe sets."""

    epochs: float
    batch_size: int
    learning_rate: float
    precision: str
    seed: int
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came out: final metrics, history (one dict per log line), seconds, passes and cache
    size.

    ``error`` is why the run failed, ``earlier_errors`` when and why earlier attempts at it did, the
    oldest first. ``epoch_seconds`` is what the steps of each epoch took, evaluations and saves left
    out.
    """

    status: Status = "running"
    metrics: dict[str, float | None] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    timing: dict[str, float | None] = field(default_factory=dict)
    epoch_seconds: list[float] | None = later(None)  # noqa: RUF009 - it is a field
    passes: dict[str, float | None] = field(default_factory=dict)
    cache_bytes: int | None = None
    error: str | None = None
    earlier_errors: list[str] = field(default_factory=list, metadata=_LATER)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. Records are values: :meth:`finish` and :meth:`fail` return a new one.

    Example:
        >>> record = RunRecord.begin(
        ...     name="sst2-arch-1",
        ...     method=MethodInfo(name="arch", settings={"radius": 1e-5}),
        ...     task=TaskInfo(name="glue/sst2", sizes={"train": 67349}),
        ...     model=ModelInfo(name="/data/models/roberta-base"),
        ...     training=TrainingInfo(epochs=3, batch_size=32, learning_rate=1e-5, precision="bf16", seed=1),
        ... )
        >>> record.portable().model.name
        '…/roberta-base'
        >>> record.finish(metrics={"accuracy": 0.95}).outcome.status
        'finished'
    """

    schema: int = SCHEMA
    name: str
    method: MethodInfo
    task: TaskInfo
    model: ModelInfo
    training: TrainingInfo
    environment: dict[str, Any]
    started: str
    finished: str | None = None
    outcome: Outcome = field(default_factory=Outcome)

    @classmethod
    def begin(
        cls,
        *,
        name: str,
        method: MethodInfo,
        task: TaskInfo,
        model: ModelInfo,
        training: TrainingInfo,
        device: str | None = None,
    ) -> RunRecord:
        """A record of a run that starts now, here."""
        return cls(
            name=name,
            method=method,
            task=task,
            model=model,
            training=training,
            environment=capture_environment(device),
            started=now(),
        )

    def finish(
        self,
        *,
        metrics: Mapping[str, float | None],
        history: Sequence[Mapping[str, Any]] = (),
        timing: Mapping[str, float | None] | None = None,
        epoch_seconds: Sequence[float] | None = None,
        passes: Mapping[str, float | None] | None = None,
        cache_bytes: int | None = None,
    ) -> RunRecord:
        """The record of the same run, finished now."""
        outcome = Outcome(
            status="finished",
            metrics=dict(metrics),
            history=[dict(line) for line in history],
            timing=dict(timing or {}),
            epoch_seconds=None if epoch_seconds is None else list(epoch_seconds),
            passes=dict(passes or {}),
            cache_bytes=cache_bytes,
            earlier_errors=self.outcome.earlier_errors,
        )
        return dataclasses.replace(self, outcome=outcome, finished=now())

    def fail(
        self, error: BaseException | str, history: Sequence[Mapping[str, Any]] = ()
    ) -> RunRecord:
        """The record of the same run, failed now, with what was logged; what the outcome already
        holds is kept.
        """
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        logged = [*self.outcome.history, *(dict(line) for line in history)]
        outcome = dataclasses.replace(self.outcome, status="failed", error=text, history=logged)
        return dataclasses.replace(self, outcome=outcome, finished=now())

    def after(self, earlier: RunRecord) -> RunRecord:
        """The record of the same run, begun again; if the earlier attempt failed, it is kept when
        and why.
        """
        before = earlier.outcome
        errors = [
            *before.earlier_errors,
            *([f"{earlier.finished}: {before.error}"] if before.error else []),
        ]
        return dataclasses.replace(
            self, outcome=dataclasses.replace(self.outcome, earlier_errors=errors)
        )

    def portable(self, *, keep_paths: bool = False) -> RunRecord:
        """The record as it is written: plain JSON values, finite numbers, no paths of this
        machine.
        """
        try:
            return _from_payload(_plain(_shallow(self), "", keep_paths))
        except RecursionError:
            raise RecordError(
                "is nested too deeply", "leave out what contains itself", field="record"
            ) from None

    def save(self, path: str | os.PathLike[str], *, keep_paths: bool = False) -> None:
        """Write the record to ``path`` in one piece; folders are made as needed."""
        try:
            portable = self.portable(keep_paths=keep_paths)
        except RecordError as error:
            raise error.at(Path(path)) from None
        save_as(path, portable, keep_paths=keep_paths)


def load(path: str | os.PathLike[str]) -> RunRecord:
    """Read one record; :class:`RecordError` for anything but a whole, unedited record of this
    schema.

    A file that is not there or may not be read raises the usual ``OSError``.
    """
    return _unseal(Path(path), _from_payload)


def save_as(path: str | os.PathLike[str], record: Any, *, keep_paths: bool = False) -> None:
    """Write any dataclass as records are written: plain JSON, no paths of this machine, sealed, in
    one piece.
    """
    path = Path(path)
    try:
        text = _seal(_plain(_shallow(record), "", keep_paths))
    except RecordError as error:
        raise error.at(path) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def load_as(path: str | os.PathLike[str], cls: type[R]) -> R:
    """Read what :func:`save_as` wrote; ``cls`` is a dataclass whose field ``schema`` holds its
    version by default.
    """

    def build(payload: Any) -> R:
        _check_schema(payload, getattr(cls, "schema"))  # noqa: B009 - a class attribute no protocol can promise
        record: R = _decode(cls, payload, "")
        return record

    return _unseal(Path(path), build)


def seal_line(record: RunRecord) -> str:
    """The record as one line of text, sealed as a file is; see :mod:`advreg.records.log`."""
    return _seal(_plain(_shallow(record), "", False), compact=True)


def unseal_line(line: str) -> RunRecord:
    """The record that :func:`seal_line` wrote; :class:`RecordError` for anything but a whole,
    unedited one.
    """
    return _checked(line, _from_payload)


def _unseal(path: Path, build: Callable[[Any], R]) -> R:
    """The record in a file whose checksum holds, made of its JSON by ``build``."""
    try:
        # CRLF: a checkout may have converted the line ends; inside strings they are escaped
        return _checked(path.read_bytes().decode("utf-8").replace("\r\n", "\n"), build)
    except UnicodeDecodeError as error:
        raise RecordError(
            f"is not UTF-8 ({error.reason} at byte {error.start})", _UNEDITED, path=path
        ) from None
    except RecordError as error:
        raise error.at(path) from None


def _checked(text: str, build: Callable[[Any], R]) -> R:
    """The record in a text whose checksum holds."""
    payload = _parse(text)
    checksum = payload.pop("checksum", None) if isinstance(payload, dict) else None
    record = build(payload)
    if not isinstance(checksum, str) or not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise RecordError(
            f"must be 64 hexadecimal digits, got {_shown(checksum)}", _UNEDITED, field="checksum"
        )
    if _digest(text.replace(checksum, _BLANK_CHECKSUM, 1)) != checksum:
        raise RecordError("does not match the content", _UNEDITED, field="checksum")
    return record


def load_all(folder: str | os.PathLike[str], pattern: str = "*.json") -> list[RunRecord]:
    """Read every record in ``folder`` whose name matches ``pattern``, in the order of their
    names.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(
            "is not a folder", "give the folder that the runs wrote their records to", path=folder
        )
    return [load(path) for path in sorted(folder.glob(pattern))]


def capture_environment(device: str | None = None) -> dict[str, Any]:
    """Versions, commit, machine and command line; neither host, user nor paths.

    Args:
        device: name of the accelerator; this module has no torch to ask.
    """
    return {
        "advreg": _version("advreg"),
        "git": _git_state(),
        "python": platform.python_version(),
        "packages": {
            name: version for name in _PACKAGES if (version := _version(name)) is not None
        },
        # the kernel's release may name the machine's owner
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "device": device,
        "arguments": [_without_paths(_clean(argument)) for argument in sys.argv[1:]],
    }


def now() -> str:
    """The time in UTC, to the second, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Commit and dirty flag of advreg's own checkout, or of the working directory where advreg is
    installed.

    ``ADVREG_COMMIT`` names it for a copy whose history stayed elsewhere, ``ADVREG_TREE`` the state
    of the tree that was copied: ``clean`` or ``dirty``.
    """
    if said := os.environ.get("ADVREG_COMMIT"):
        return {"of": "ADVREG_COMMIT", "commit": said, "dirty": _TREE_STATES[_tree_state()]}
    package = Path(__file__).resolve().parents[1]
    candidates = [] if "site-packages" in package.parts else [("advreg", package)]
    for where, folder in [*candidates, ("working directory", Path.cwd())]:
        commit = _git(folder, "rev-parse", "HEAD")
        if commit is not None:
            # untracked files do not count: every run leaves some
            changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return {
                "of": where,
                "commit": commit,
                "dirty": None if changes is None else bool(changes),
            }
    return None


def _tree_state() -> str:
    state = os.environ.get("ADVREG_TREE", "")
    if state not in _TREE_STATES:
        raise RecordError(
            f"must be clean or dirty, got {state!r}",
            "correct it or leave it out",
            field="ADVREG_TREE",
        )
    return state


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


# --- writing
# ---------------------------------------------------------------------------------------------------------


def _shallow(value: Any) -> dict[str, Any]:
    """A dataclass as a dict, and so those in its fields and lists; other values as they are (asdict
    copies tensors).
    """

    def inner(item: Any) -> Any:
        if isinstance(item, list):
            return [inner(entry) for entry in item]
        return _shallow(item) if dataclasses.is_dataclass(item) else item

    return {field.name: inner(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any, where: str, keep_paths: bool) -> Any:
    """Reduce a value to JSON, or say which field cannot be."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | PurePath):
        text = _clean(str.__str__(value) if isinstance(value, str) else str(value))
        return text if keep_paths else _without_paths(text)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                remedy = "convert the keys to text before they go into the record"
                raise RecordError(
                    f"must have keys of type str, got {_shown(key)}",
                    remedy,
                    field=where or "record",
                )
        return {
            _clean(str.__str__(key)): _plain(item, f"{where}.{key}".lstrip("."), keep_paths)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]", keep_paths) for index, item in enumerate(value)]
    remedy = "convert it (float(), .item(), .tolist(), str()) before it goes into the record"
    raise RecordError(f"must be a JSON value, got {type(value).__name__}", remedy, field=where)


def _clean(text: str) -> str:
    """Escape what UTF-8 cannot hold: undecodable bytes in arguments and file names arrive as lone
    surrogates.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# not inside a relative path, a URL or a path already shortened
_START = r"(?:(?<![\w/.…~])|(?<=file://))"
_PART = r"[^\s…/:;,'\"()<>|\[\]{}=]+"
_POSIX_PATH = re.compile(rf"{_START}/{_PART}(?:/+{_PART})*/+({_PART})/*")
_WINDOWS_PATH = re.compile(r"(?<![\w/…])[A-Za-z]:\\(?:[^\\\s…:;,'\"<>|]+\\)*([^\\\s…:;,'\"<>|]*)")


def _without_paths(text: str) -> str:
    """Shorten absolute paths to ``…/`` and their last part. Doing it twice changes nothing."""
    home = os.path.expanduser("~")
    if len(home) > 1:  # first, and by name: it may hold spaces, where the patterns stop
        text = re.sub(rf"{_START}{re.escape(home)}(?![\w.-])", "/~", text)
        text = re.sub(rf"{_START}/~(?!/)", "…/~", text)
    return _WINDOWS_PATH.sub(r"…/\1", _POSIX_PATH.sub(r"…/\1", text))


def _seal(payload: Mapping[str, Any], compact: bool = False) -> str:
    """The file's text, with the checksum of itself (taken with the checksum blank) as its first
    entry.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    try:
        body = {"checksum": _BLANK_CHECKSUM, **payload}
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, **layout) + "\n"
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise RecordError(f"cannot be written as JSON ({error})", "leave the value out") from None
    return text.replace(_BLANK_CHECKSUM, _digest(text), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: whatever happens, it holds the old text or the new one."""
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


def stays_inside(name: str) -> bool:
    """Does a path that was read from a file stay in the folder it is relative to?"""
    return not any(
        kind(name).is_absolute() or ".." in kind(name).parts
        for kind in (PurePosixPath, PureWindowsPath)
    )


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk: a file that was renamed there is found again after a
    power cut.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows has no such thing
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems refuse
        pass
    finally:
        os.close(descriptor)


# --- reading
# ---------------------------------------------------------------------------------------------------------


def _parse(text: str) -> Any:
    """json.loads, less its lenience: no NaN, no overflow to infinity, no key twice."""

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
        return json.loads(
            text, parse_constant=constant, parse_float=number, object_pairs_hook=entries
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not valid JSON ({error})", _UNEDITED) from None


def _from_payload(payload: Any) -> RunRecord:
    """Build the record from parsed JSON, checking every field."""
    _check_schema(payload, SCHEMA)
    record: RunRecord = _decode(RunRecord, payload, "")
    _check_times(record)
    return record


def _check_schema(payload: Any, current: int) -> None:
    if not isinstance(payload, dict):
        raise RecordError(f"must be an object, got {_shown(payload)}", _UNEDITED, field="record")
    schema = payload.get("schema", current)  # its absence is reported as that of any other field
    if type(schema) is int and schema != current:
        remedy = (
            "update advreg"
            if schema > current
            else "read it with the advreg that wrote it, or repeat the run"
        )
        raise RecordError(f"must be {current}, got {schema}", remedy, field="schema")


def _check_times(record: RunRecord) -> None:
    for name, stamp in (("started", record.started), ("finished", record.finished)):
        if stamp is not None and not _is_utc(stamp):
            raise RecordError(
                f"must be an ISO 8601 time in UTC, got {stamp!r}", _UNEDITED, field=name
            )
    status = record.outcome.status
    if (status == "running") != (record.finished is None):
        expected = (
            "null while the run is running"
            if status == "running"
            else f"a time once the run is {status}"
        )
        raise RecordError(
            f"must be {expected}, got {record.finished!r}", _UNEDITED, field="finished"
        )
    if (status == "failed") != (record.outcome.error is not None):
        expected = "a text" if status == "failed" else "null"
        got = _shown(record.outcome.error)
        raise RecordError(
            f"must be {expected} when the run is {status}, got {got}",
            _UNEDITED,
            field="outcome.error",
        )


def _is_utc(stamp: str) -> bool:
    try:
        return datetime.fromisoformat(stamp).utcoffset() == timedelta(0)
    except ValueError:
        return False


def _decode(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against a field's type, and build the dataclasses on the way."""
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:  # only ever "… | None"
        return None if value is None else _decode(arguments[0], value, where)
    if origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise RecordError(
            f"must be one of {', '.join(arguments)}, got {_shown(value)}", _UNEDITED, field=where
        )
    if origin is dict and isinstance(value, dict):
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is list and isinstance(value, list):
        return [
            _decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)
        ]
    kind = origin or hint
    accepted = (int, float) if kind is float else (kind,)
    if origin is None and type(value) in accepted:  # type(): True is not a number here
        return value
    names = {
        dict: "an object",
        list: "a list",
        float: "a number",
        int: "a whole number",
        str: "a text",
    }
    raise RecordError(f"must be {names[kind]}, got {_shown(value)}", _UNEDITED, field=where)


def _decode_dataclass(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(
            f"must be an object, got {_shown(value)}", _UNEDITED, field=where or "record"
        )
    hints = typing.get_type_hints(cls)
    prefix = f"{where}." if where else ""
    for name in sorted(hints.keys() - value.keys() - _later(cls)):
        raise RecordError("is missing", _UNEDITED, field=prefix + name)
    for name in sorted(value.keys() - hints.keys()):
        raise RecordError("is not a known field", _UNEDITED, field=prefix + name)
    return cls(**{name: _decode(hints[name], item, prefix + name) for name, item in value.items()})


def _later(cls: Any) -> set[str]:
    return {part.name for part in dataclasses.fields(cls) if part.metadata.get("later")}


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
