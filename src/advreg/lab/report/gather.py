"""Finding the records of a report in files and folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advreg.records import diagnostics as health
from advreg.records.bench import BenchRecord
from advreg.records.compare import COMPARE_FILE, CompareRecord
from advreg.records.diagnostics import HealthRecord, MemoryHealth
from advreg.records.log import LOG_SUFFIX
from advreg.records.probe import ProbeRecord
from advreg.records.reading import Record, read_each
from advreg.records.run import RECORD_FILE, RunRecord
from advreg.records.sealed import RecordError
from advreg.records.study import STUDY_FILE, StudyRecord

PLAN_FILE = "plan.json"
_SKIPPED = ("checkpoint-", "model", "weights", "subwords", ".")  # folders without records


@dataclass
class Run:
    """A run that has a record; ``name`` is the path of its folder below the one that all records
    are in.
    """

    path: Path
    record: RunRecord
    health: HealthRecord | None = None
    name: str = ""

    @property
    def is_tuning(self) -> bool:
        """Whether it was trained on a part of the training data, to choose settings."""
        return "held_out" in self.record.task.details

    @property
    def is_finished(self) -> bool:
        return self.record.outcome.status == "finished"

    @property
    def peak_bytes(self) -> int:
        """The most memory on the GPU; 0 if unknown."""
        return (self.health.peak_bytes or 0) if self.health is not None else 0

    @property
    def memory(self) -> MemoryHealth | None:
        """The state of the method's memory at the end."""
        return self.health.memory if self.health is not None else None


@dataclass
class Unfinished:
    """A run that began and has no record: it is still running, or was stopped."""

    path: Path
    method: str
    seed: int | None
    name: str = ""


@dataclass
class Unreadable:
    """A file that looks like a record and cannot be read, and the reason."""

    path: Path
    reason: str
    name: str = ""


@dataclass
class Gathered:
    """All records."""

    runs: list[Run] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    comparisons: dict[Path, CompareRecord] = field(default_factory=dict)  # by folder
    studies: dict[Path, StudyRecord] = field(default_factory=dict)  # by folder
    probes: list[ProbeRecord] = field(default_factory=list)
    benches: list[BenchRecord] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    root: Path = Path("/")  # the folder that names begin at

    def add(self, path: Path, record: Record) -> None:
        """Add the record of a file."""
        folder = path.parent
        match record:
            case RunRecord() if path.name.endswith(LOG_SUFFIX):
                self.runs.append(Run(path / record.name, record))
            case RunRecord():
                self.runs.append(Run(folder, record, _health(folder)))
            case CompareRecord():
                self.comparisons[folder] = record
            case StudyRecord():
                self.studies[folder] = record
            case ProbeRecord():
                self.probes.append(record)
            case BenchRecord():
                self.benches.append(record)

    def name_of(self, path: Path) -> str:
        """A path below the folder that holds all records, for a page: folders above it may name
        a user.
        """
        return path.absolute().relative_to(self.root).as_posix()

    def name_all(self) -> None:
        """Name runs and files, once all are known."""
        named: list[Run | Unfinished | Unreadable]
        named = [*self.runs, *self.unfinished, *self.unreadable]
        folders = [folder.absolute() for folder in (*self.comparisons, *self.studies)]
        folders += [each.path.absolute().parent for each in named]
        if folders:
            self.root = Path(os.path.commonpath(folders))
        for each in named:
            each.name = self.name_of(each.path)


def gather(places: Iterable[Path]) -> Gathered:
    """Read the records at these places: files, and folders with everything below them.

    A record in a folder that cannot be read is noted; one that was named is an error.
    """
    found, seen = Gathered(), set[Path]()
    for place in places:
        before = len(seen)
        for path in _files(place):
            if path.resolve() not in seen and _take(path, found, strict=path == place):
                seen.add(path.resolve())
        if len(seen) == before and not any(path.is_relative_to(place.resolve()) for path in seen):
            raise ValueError(
                f"'{place}' holds no records; give folders of runs of `advreg train`, `compare` or "
                "`study`, or the files of `advreg probe` and `bench`"
            )
    found.name_all()
    return found


def _files(place: Path) -> Iterator[Path]:
    """A file itself; of a folder, and around the record of a comparison or study, all files that
    may be records, in a stable order.
    """
    if place.is_file() and place.name not in (COMPARE_FILE, STUDY_FILE):
        yield place
    elif not place.exists():
        raise ValueError(
            f"'{place}' is neither a file nor a folder; give folders of runs, or files of records"
        )
    else:
        yield from _below(place if place.is_dir() else place.parent)


def _below(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_SKIPPED))
        for name in sorted(names):
            if name.endswith((".json", LOG_SUFFIX)) and not name.startswith("."):
                yield Path(here) / name


def _take(path: Path, found: Gathered, strict: bool) -> bool:
    """Read what a file holds; whether it holds any record."""
    if path.name == PLAN_FILE:
        return _take_plan(path, found)
    read = list(read_each(path))
    for record in read:
        if not isinstance(record, RecordError):
            found.add(path, record)
        elif strict:
            raise record
        else:
            reason = f"{record.field or ''} {record.problem}".strip()
            found.unreadable.append(Unreadable(path, reason))
    if strict and not read:
        remedy = "give a record.json, compare.json or study.json, or a probe's or bench's"
        raise RecordError("is not a record", remedy, path=path)
    return bool(read)


def _take_plan(path: Path, found: Gathered) -> bool:
    """Note a run that has a plan and no record."""
    folder = path.parent
    plan: Any = None
    with suppress(ValueError, OSError):
        plan = json.loads(path.read_bytes())
    is_waiting = isinstance(plan, dict) and "method" in plan
    if not is_waiting or (folder / RECORD_FILE).is_file():
        return False
    seed = plan.get("seed") if isinstance(plan.get("seed"), int) else None
    found.unfinished.append(Unfinished(folder, str(plan["method"]), seed))
    return True


def _health(folder: Path) -> HealthRecord | None:
    """The diagnostics of a run; a damaged file is noted when its folder is searched."""
    with suppress(RecordError):
        return health.load(folder)
    return None
