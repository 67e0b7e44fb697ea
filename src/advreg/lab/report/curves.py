"""Values that were logged over training, by method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advreg.records.run import RunRecord

Measure = Callable[[Mapping[str, Any]], float | None]  # of a line of the log


@dataclass(frozen=True)
class Curve:
    """The values of a method: mean and extremes over seeds at each place of training, and the
    variance of each seed.
    """

    places: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    variances: Sequence[float]


def logged(*names: str) -> Measure:
    """The value of a log line under the first of these names that it has."""
    return lambda line: next((line[name] for name in names if name in line), None)


GRADIENT_NORM = logged("grad_norm")


def curve(
    runs: Sequence[RunRecord],
    axis: str = "step",
    measure: Measure = GRADIENT_NORM,
    settled: bool = False,
) -> Curve:
    """The curve of a method over several seeds; without places if nothing was logged.

    Args:
        runs: records of its runs.
        axis: ``"step"`` or ``"epoch"``.
        measure: the value to take from a log line.
        settled: whether variances leave out the warm-up.
    """
    lines = list(filter(None, (_values(run, axis, measure) for run in runs)))
    shared = sorted(set.intersection(*map(set, lines))) if lines else []
    columns = [[line[place] for line in lines] for place in shared]
    after = [_values(run, axis, measure, _warmup(run) if settled else 0) for run in runs]
    return Curve(
        places=shared,
        mean=list(map(statistics.fmean, columns)),
        low=list(map(min, columns)),
        high=list(map(max, columns)),
        variances=[statistics.variance(line.values()) for line in after if len(line) > 1],
    )


def _warmup(run: RunRecord) -> int:
    return int(run.training.more.get("warmup_steps") or 0)


def _values(run: RunRecord, axis: str, measure: Measure, after: int = 0) -> dict[float, float]:
    """The measure by step or epoch, from every log line after a step that has one."""
    lines = [line for line in run.outcome.history if line.get("step", math.inf) > after]
    values = [(line[axis], measure(line)) for line in lines if axis in line]
    return {float(place): float(value) for place, value in values if value is not None}


def shared_axis(runs: Iterable[RunRecord]) -> str:
    """Steps; epochs where the numbers of steps differ."""
    return "step" if len({run.outcome.timing.get("steps") for run in runs}) == 1 else "epoch"
