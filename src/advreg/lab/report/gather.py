"""Finding the records that a report is drawn from: of runs and of all that is made of them, in
files and folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from advreg.records import diagnostics as health
from advreg.records import run as record
from advreg.records.compare import COMPARE_FILE, CompareRecord
from advreg.records.diagnostics import HealthRecord
from advreg.records.probe import ProbeRecord
from advreg.records.run import RunRecord
from advreg.records.sealed import RecordError, load_as
from advreg.records.study import STUDY_FILE, StudyRecord

PLAN_FILE, RECORD_FILE = "plan.json", "record.json"
_SKIPPED = (
    "checkpoint-",
    "model",
    "weights",
    "subwords",
    ".",
)  # beginnings of folders that hold no records
_NAME_PARTS = 3


@dataclass(frozen=True)
class Run:
    """A run that has a record; ``name`` is the end of its folder's path, which no other run has."""

    name: str
    folder: Path
    record: RunRecord
    health: HealthRecord | None = None

    @property
    def is_tuning(self) -> bool:
        """Was it trained on a part of the training data, to choose settings?"""
        return "held_out" in self.record.task.details


@dataclass(frozen=True)
class Unfinished:
    """A run that was begun and has no record: it is still going on, or was stopped."""

    name: str
    folder: Path
    method: str
    seed: int | None


@dataclass(frozen=True)
class Unreadable:
    """A file that looks like a record and cannot be read, and why."""

    name: str
    path: Path
    reason: str


@dataclass
class Gathered:
    """All that was found."""

    runs: list[Run] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    comparisons: dict[Path, CompareRecord] = field(default_factory=dict)  # by folder
    studies: dict[Path, StudyRecord] = field(default_factory=dict)  # by folder
    probes: list[ProbeRecord] = field(default_factory=list)
    benches: list[Path] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


def gather(places: Iterable[Path]) -> Gathered:
    """Read what is at these places: folders are searched with all that is in them, files are read.

    A record in a folder that cannot be read is noted; one that was named is an error.
    """
    found, seen = Gathered(), set[Path]()
    for place in places:
        if place.is_dir():
            files: Iterator[Path] = _files(place)
        elif place.is_file():
            files = (
                _files(place.parent) if place.name in (COMPARE_FILE, STUDY_FILE) else iter([place])
            )
        else:
            raise ValueError(
                f"'{place}' is neither a file nor a folder; give folders of runs, or files of "
                "records"
            )
        before = len(seen)
        for path in files:
            if path.resolve() not in seen:
                _take(path, found, seen, strict=path == place)
        if len(seen) == before and not any(path.is_relative_to(place.resolve()) for path in seen):
            raise ValueError(
                f"'{place}' holds no records; give folders of runs of `advreg train`, `compare` or "
                "`study`, or the "
                "files of `advreg probe` and `bench`"
            )
    _tell_apart(found)
    return found


def _tell_apart(found: Gathered) -> None:
    """Lengthen names that repeat."""
    names = short_names(
        [*(run.folder for run in found.runs), *(run.folder for run in found.unfinished)]
    )
    found.runs = [replace(run, name=names[run.folder]) for run in found.runs]
    found.unfinished = [replace(run, name=names[run.folder]) for run in found.unfinished]
    files = short_names([each.path for each in found.unreadable])
    found.unreadable = [replace(each, name=files[each.path]) for each in found.unreadable]


def _files(folder: Path) -> Iterator[Path]:
    """The JSON files below a folder, in a stable order."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_SKIPPED))
        yield from (
            Path(here) / name
            for name in sorted(names)
            if name.endswith(".json") and not name.startswith(".")
        )


def _take(path: Path, found: Gathered, seen: set[Path], strict: bool) -> None:
    """Read a file if it is a record of a known kind, and put it where it belongs."""
    try:
        kind = _kind(path)
        if kind == "run":
            run = record.load(path)
            found.runs.append(
                Run(short_name(path.parent), path.parent, run, health.load(path.parent))
            )
        elif kind == "compare":
            found.comparisons[path.parent] = load_as(path, CompareRecord)
        elif kind == "study":
            found.studies[path.parent] = load_as(path, StudyRecord)
        elif kind == "probe":
            found.probes.append(load_as(path, ProbeRecord))
        elif kind == "bench":
            found.benches.append(path)
        elif kind == "plan":
            found.unfinished.append(_unfinished(path))
        elif strict:
            remedy = "give a record.json, compare.json or study.json, or a probe's or bench's"
            raise RecordError("is not a record", remedy, path=path)
        else:
            return
    except RecordError as error:
        if strict:
            raise
        found.unreadable.append(
            Unreadable(short_name(path), path, f"{error.field or ''} {error.problem}".strip())
        )
    seen.add(path.resolve())


def _kind(path: Path) -> str | None:
    """Of which kind a file is; ``None`` if it is no record."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        if path.name in (RECORD_FILE, COMPARE_FILE, STUDY_FILE):
            raise RecordError(f"is not valid JSON ({error})", "repeat the run", path=path) from None
        return None
    if path.name == PLAN_FILE:
        is_plan = isinstance(content, dict) and "method" in content
        return "plan" if is_plan and not (path.parent / RECORD_FILE).is_file() else None
    if not isinstance(content, dict) or "checksum" not in content:
        return "run" if path.name == RECORD_FILE else None
    kind = content.get("kind", "run" if "outcome" in content else None)
    return str(kind) if kind in ("run", "compare", "study", "probe", "bench") else None


def _unfinished(path: Path) -> Unfinished:
    facts: dict[str, Any] = json.loads(path.read_bytes())
    seed, folder = facts.get("seed"), path.parent
    return Unfinished(
        short_name(folder), folder, str(facts["method"]), seed if isinstance(seed, int) else None
    )


def short_name(path: Path, parts: int = _NAME_PARTS) -> str:
    """The end of a path, which a page may show: nothing of the machine is in it.

    Example:
        >>> short_name(Path("/home/somebody/runs/compare/rte/arch/seed-0"))
        'rte/arch/seed-0'
    """
    return "/".join(path.absolute().parts[-parts:])


def short_names(paths: Iterable[Path]) -> dict[Path, str]:
    """The short name of each path; those that would have the same are longer by what tells them
    apart.

    Example:
        >>> names = ("a/rte/arch/0", "b/rte/arch/0", "b/rte/smart/0")
        >>> paths = [Path("/runs", name) for name in names]
        >>> list(short_names(paths).values())
        ['a/rte/arch/0', 'b/rte/arch/0', 'rte/smart/0']
    """
    alike: dict[str, set[Path]] = {}
    for path in (paths := list(paths)):
        alike.setdefault(short_name(path), set()).add(path.absolute())
    return {path: short_name(path, _parts_needed(alike[short_name(path)])) for path in paths}


def _parts_needed(paths: set[Path]) -> int:
    parts = _NAME_PARTS
    while len({short_name(path, parts) for path in paths}) < len(paths):
        parts += 1
    return parts
