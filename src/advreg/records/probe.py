"""What a probing found, as one JSON file; without torch, so that reports can read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Heads of all seeds for one encoder and one task.

    Args:
        encoder: its short name.
        label: what its violin is called: the method it was trained with, or its name.
        trained_on: the task it was trained on, if its record tells.
        task: what the heads were fitted for.
        scores: the task's one number of each seed, in percent.
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
    """A probing experiment as it is written."""

    schema: int = SCHEMA
    kind: Literal["probe"] = "probe"
    settings: dict[str, Any]
    commit: str | None
    environment: dict[str, Any]
    started: str
    finished: str
    results: list[ProbeResult] = field(default_factory=list)
