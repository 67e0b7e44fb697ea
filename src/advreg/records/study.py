"""The record of a study: its panels, and the score of every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from advreg.records.compare import ComparedTask, Status, name_the_split
from advreg.records.environment import EnvironmentInfo
from advreg.records.sealed import Payload, RecordError, Upgrade, load_as, save_as

STUDY_FILE = "study.json"


@dataclass(frozen=True, kw_only=True)
class StudiedRun:
    """A run.

    Args:
        seed: of weights and order.
        folder: of its record, relative to the study's.
        score: the task's main score, in percent; null if it failed or has not run yet.
        seconds: duration of its training.
        error: why it failed.
    """

    seed: int
    folder: str
    score: float | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class StudiedVariant:
    """Runs of one method with the same settings, one for each seed.

    Args:
        name: METHOD/default, or METHOD/ and the difference from it.
        method: its method.
        changes: options and settings that differ from the default's.
        runs: one for each seed.
    """

    name: str
    method: str
    changes: dict[str, Any]
    runs: list[StudiedRun]


@dataclass(frozen=True, kw_only=True)
class StudiedPoint:
    """A point of a panel: its label on the axis, and the name of its variant."""

    label: str
    variant: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One study; ``title`` says what is varied."""

    name: str
    title: str
    points: list[StudiedPoint]


def _name_the_split(record: Payload) -> Payload:
    return record | {"task": name_the_split(record["task"])}


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """All studies of one method on one task.

    Args:
        schema: version of this layout.
        kind: distinguishes it from other records.
        status: whether the study finished.
        method: the studied method.
        seeds: of every variant.
        task: its data, and the settings that all runs share.
        panels: the options that were varied, in the order of drawing.
        baselines: names of the variants that are drawn as lines.
        variants: every different setting, and its runs.
        notes: caveats for the reader, such as points that cannot differ.
        environment: as :func:`advreg.records.environment.capture_environment` gives it;
            ``device`` names every device of the runs.
        started, finished: times in UTC; ``finished`` is the time of the last change.
    """

    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _name_the_split}

    schema: int = 2
    kind: Literal["study"] = "study"
    status: Status
    method: str
    seeds: list[int]
    task: ComparedTask
    panels: list[Panel]
    baselines: list[str]
    variants: list[StudiedVariant]
    notes: list[str]
    environment: EnvironmentInfo
    started: str
    finished: str

    def save(self, folder: Path) -> None:
        save_as(folder / STUDY_FILE, self)


def load(folder: Path) -> StudyRecord:
    """Read a study's file; errors as in :func:`~advreg.records.sealed.load_as`."""
    path = folder / STUDY_FILE
    if not path.is_file():
        raise RecordError(
            "is not there", "give the --output folder of an `advreg study`", path=path
        )
    return load_as(path, StudyRecord)
