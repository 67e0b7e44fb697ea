"""The record of a bench: every round of every contender, so that each figure can be recomputed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from advreg.records.environment import EnvironmentInfo
from advreg.records.sealed import RecordError, load_as, save_as

STANDARD, YARDSTICK = "standard", "standard on 2B"

Phase = Literal["always", "reuse", "refresh", "sweep"]
Status = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Several measurements of one thing: median, quartiles, extremes."""

    median: float
    quartile_1: float
    quartile_3: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """``None`` if nothing was measured.

        Example:
            >>> Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
            Spread(median=3.0, quartile_1=2.0, quartile_3=4.0, least=1.0, most=5.0)
        """
        if not values:
            return None
        several = [*values, *values] if len(values) == 1 else values  # quantiles needs two
        low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
        return cls(
            median=middle, quartile_1=low, quartile_3=high, least=min(values), most=max(values)
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender at one shape.

    Args:
        name: of the row.
        method: its name, without options.
        settings: all of its options.
        phase: ``"reuse"`` or ``"refresh"``: ARCH's kinds of epoch; ``"sweep"``: what a sweep of the
            cache adds to each step of its epoch; ``"always"``: all steps are equal.
        against: the row that ``ratio`` divides by.
        rounds: milliseconds per step, round by round.
        time: their spread.
        ratio: spread of (this row / the other one), each taken within one round.
        forward, backward: passes over one batch per step; a fused pass counts as two, gradients of
            δ alone as backwards. ``None``: not counted.
        arithmetic: what those passes cost by their arithmetic, in steps of Standard: forward 1/3,
            backward through one forward's graph 2/3, or 1/3 if only δ's gradient is wanted.
        peak_bytes: peak memory allocated on the GPU in a step, excluding what other contenders
            hold; ``None`` on a CPU.
        cache_bytes: what the method keeps between steps.
        error: why the measurement did not finish.
    """

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    phase: Phase = "always"
    against: str = STANDARD
    rounds: list[float] = field(default_factory=list)
    time: Spread | None = None
    ratio: Spread | None = None
    forward: float | None = None
    backward: float | None = None
    arithmetic: float | None = None
    peak_bytes: int | None = None
    cache_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """A method over a whole run: epochs of each kind times what their steps took.

    Args:
        name: of the method.
        refreshes: epochs that refresh the cache; 0 for methods without one.
        to_standard, to_smart: time relative to Standard's and SMART's, round by round.
    """

    name: str
    refreshes: int
    to_standard: Spread | None
    to_smart: Spread | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """All contenders at one shape."""

    batch: int
    tokens: int
    rows: list[Row]
    whole: list[WholeRun]


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """One bench.

    Args:
        schema: version of this layout.
        kind: distinguishes it from other records.
        status: whether the measurement finished.
        settings: all of :class:`~advreg.lab.bench.settings.BenchSettings`.
        model: class, parameters and streams of the model.
        commit: of the code, as given or found.
        environment: versions, machine and arguments, as
            :func:`advreg.records.environment.capture_environment` returns them.
        hardware: the device, and how torch uses it.
        started, finished: times in UTC.
        notes: what was left out, and why.
        panels: the measurements, shape by shape.
    """

    schema: int = 1
    kind: Literal["bench"] = "bench"
    status: Status
    settings: dict[str, Any]
    model: dict[str, Any]
    commit: str | None
    environment: EnvironmentInfo
    hardware: dict[str, Any]
    started: str
    finished: str
    notes: list[str]
    panels: list[Panel]

    def save(self, path: Path) -> None:
        save_as(path, self)


def load(path: Path) -> BenchRecord:
    """Read a bench; errors as in :func:`~advreg.records.sealed.load_as`."""
    if not path.is_file():
        raise RecordError(
            "is not a file", "give the record that `advreg bench --out` wrote", path=path
        )
    return load_as(path, BenchRecord)
