"""The record of one run: method, task, model, training, environment and outcome, as one JSON file.

Reports are drawn from records alone, so a record is complete, is never half written and is never
edited; :mod:`advreg.records.sealed` describes the file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from advreg.records.environment import EnvironmentInfo, capture_environment, now
from advreg.records.sealed import (
    UNEDITED,
    Payload,
    RecordError,
    Upgrade,
    load_as,
    naming,
    portable,
    save_as,
    shown,
)

RECORD_FILE = "record.json"

Status = Literal["running", "finished", "failed"]


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
    """The model; ``name`` is a hub name, or the last part of a path."""

    name: str
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingInfo:
    """The settings of the training; ``more``: settings of this kind of task only."""

    epochs: float
    batch_size: int
    learning_rate: float
    precision: str
    seed: int
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results: final metrics, history (one dict for each log line), seconds, passes, cache size.

    ``error`` is the reason why the run failed; ``earlier_errors`` are the times and reasons of
    earlier failed attempts, oldest first. ``epoch_seconds`` is the duration of the steps of each
    epoch, without evaluations and saves.
    """

    status: Status = "running"
    metrics: dict[str, float | None] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    timing: dict[str, float | None] = field(default_factory=dict)
    epoch_seconds: list[float] | None = None
    passes: dict[str, float | None] = field(default_factory=dict)
    cache_bytes: int | None = None
    error: str | None = None
    earlier_errors: list[str] = field(default_factory=list)


def _name_the_kind(record: Payload) -> Payload:
    """Schema 1 had no ``kind``; ``epoch_seconds`` and ``earlier_errors`` joined it halfway."""
    outcome = {"epoch_seconds": None, "earlier_errors": []} | record["outcome"]
    return {"kind": "run"} | record | {"outcome": outcome}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. Records are values: :meth:`finish` and :meth:`fail` return a new one.

    Example:
        >>> record = RunRecord.begin(
        ...     name="sst2-arch-1",
        ...     method=MethodInfo(name="arch", settings={"radius": 1e-5}),
        ...     task=TaskInfo(name="glue/sst2", sizes={"train": 67349}),
        ...     model=ModelInfo(name="/data/models/roberta-base"),
        ...     training=TrainingInfo(
        ...         epochs=3, batch_size=32, learning_rate=1e-5, precision="bf16", seed=1
        ...     ),
        ... )
        >>> record.portable().model.name
        '…/roberta-base'
        >>> record.finish(metrics={"accuracy": 0.95}).outcome.status
        'finished'
    """

    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _name_the_kind}

    schema: int = 2
    kind: Literal["run"] = "run"
    name: str
    method: MethodInfo
    task: TaskInfo
    model: ModelInfo
    training: TrainingInfo
    environment: EnvironmentInfo
    started: str
    finished: str | None = None
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        for name, stamp in (("started", self.started), ("finished", self.finished)):
            if stamp is not None and not _is_utc(stamp):
                problem = f"must be an ISO 8601 time in UTC, got {stamp!r}"
                raise RecordError(problem, UNEDITED, field=name)
        status, error = self.outcome.status, self.outcome.error
        if (status == "running") != (self.finished is None):
            running = "null while the run is running"
            expected = running if status == "running" else f"a time once the run is {status}"
            problem = f"must be {expected}, got {self.finished!r}"
            raise RecordError(problem, UNEDITED, field="finished")
        if (status == "failed") != (error is not None):
            expected = "a text" if status == "failed" else "null"
            problem = f"must be {expected} when the run is {status}, got {shown(error)}"
            raise RecordError(problem, UNEDITED, field="outcome.error")

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
        """The record of the same run, failed now, with the logged lines added to its outcome."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        logged = [*self.outcome.history, *(dict(line) for line in history)]
        outcome = dataclasses.replace(self.outcome, status="failed", error=text, history=logged)
        return dataclasses.replace(self, outcome=outcome, finished=now())

    def after(self, earlier: RunRecord) -> RunRecord:
        """The record of a new attempt at the same run, with the times and reasons of failures."""
        before = earlier.outcome
        errors = [
            *before.earlier_errors,
            *([f"{earlier.finished}: {before.error}"] if before.error else []),
        ]
        return dataclasses.replace(
            self, outcome=dataclasses.replace(self.outcome, earlier_errors=errors)
        )

    def portable(self, *, keep_paths: bool = False) -> RunRecord:
        """The record after saving and loading; see :func:`advreg.records.sealed.portable`."""
        return portable(self, keep_paths=keep_paths)

    def save(self, path: str | os.PathLike[str], *, keep_paths: bool = False) -> None:
        """Write the record to ``path`` atomically; missing folders are created."""
        with naming(Path(path)):
            checked = self.portable(keep_paths=keep_paths)
        save_as(path, checked, keep_paths=keep_paths)


def load(path: str | os.PathLike[str]) -> RunRecord:
    """Read one record; errors as in :func:`~advreg.records.sealed.load_as`."""
    return load_as(path, RunRecord)


def _is_utc(stamp: str) -> bool:
    try:
        return datetime.fromisoformat(stamp).utcoffset() == timedelta(0)
    except ValueError:
        return False
