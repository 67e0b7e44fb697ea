"""The record of a probing experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from advreg.records.environment import EnvironmentInfo


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Heads of all seeds for one encoder and one task.

    Args:
        encoder: its short name.
        label: of its violin: the method it was trained with, or its name.
        trained_on: the task it was trained on, if it has a record.
        task: the task that the heads were fitted to.
        scores: the task's main score for each seed, in percent.
        metrics: all metrics of each seed.
    """

    encoder: str
    label: str
    trained_on: str | None
    task: str
    scores: list[float]
    metrics: list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """One probing experiment."""

    schema: int = 1
    kind: Literal["probe"] = "probe"
    settings: dict[str, Any]
    commit: str | None
    environment: EnvironmentInfo
    started: str
    finished: str
    results: list[ProbeResult] = field(default_factory=list)
