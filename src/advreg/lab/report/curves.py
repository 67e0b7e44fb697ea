"""What was logged over training, by method; drawn is the gradient's norm: "caching reduces gradient
norm variance".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.lab.drawing import COLOURS, OTHERS, PictureError, canvas, check_drawable
from advreg.records.run import RunRecord

Measure = Callable[[Mapping[str, Any]], float | None]  # of a line of the log


@dataclass(frozen=True)
class Curve:
    """A method's values: at each place of training the mean and the extremes over seeds, and each
    seed's variance.
    """

    method: str
    places: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    variances: Sequence[float]


def logged(*names: str) -> Measure:
    """What a log line says under the first of these names that it has."""
    return lambda line: next((line[name] for name in names if name in line), None)


GRADIENT_NORM = logged("grad_norm")


def curve(
    method: str,
    runs: Iterable[RunRecord],
    axis: str = "step",
    measure: Measure = GRADIENT_NORM,
    settled: bool = False,
) -> Curve | None:
    """The curve of a method's runs with several seeds; ``None`` if nothing was logged.

    Args:
        method: its name.
        runs: their records.
        axis: ``"step"`` or ``"epoch"``.
        measure: what to take from a log line.
        settled: are the variances of what was logged after the warm-up alone?
    """
    runs = list(runs)
    lines = [line for run in runs if (line := _values(run, axis, measure))]
    if not lines:
        return None
    shared = sorted(set.intersection(*(set(line) for line in lines)))
    columns = [[line[place] for line in lines] for place in shared]
    return Curve(
        method=method,
        places=shared,
        mean=[statistics.fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        variances=[
            statistics.variance(line.values())
            for run in runs
            if len(line := _values(run, axis, measure, _warmup(run) if settled else 0)) > 1
        ],
    )


def _warmup(run: RunRecord) -> int:
    return int(run.training.more.get("warmup_steps") or 0)


def _values(run: RunRecord, axis: str, measure: Measure, after: int = 0) -> dict[float, float]:
    """The measure by step or epoch, of every log line after a step that has one."""
    logs = [
        line for line in run.outcome.history if axis in line and line.get("step", math.inf) > after
    ]
    lines = [(line[axis], measure(line)) for line in logs]
    return {float(place): float(value) for place, value in lines if value is not None}


def shared_axis(runs: Iterable[RunRecord]) -> str:
    """Steps; epochs where batch sizes, and so numbers of steps, differ."""
    return "step" if len({run.outcome.timing.get("steps") for run in runs}) == 1 else "epoch"


def draw_norms(
    runs: Mapping[tuple[str, str, int], RunRecord],
    path: Path,
    titles: Mapping[str, str],
    settled: bool = False,
) -> None:
    """For each task a row: the norm over training by method, and its variance.

    Args:
        runs: records by task, method and seed.
        path: .svg, .png or .pdf.
        titles: names of the tasks.
        settled: as in :func:`curve`.
    """
    check_drawable(path)
    rows = [
        (titles.get(task, task), *_curves(runs, task, settled))
        for task in dict.fromkeys(key[0] for key in runs)
    ]
    rows = [row for row in rows if row[1]]
    if not rows:
        raise PictureError(
            "picture has nothing to show: no finished run has logged a gradient norm"
        )
    with canvas(path, 8.4, 0.7 + 2.5 * len(rows)) as figure:
        axes = figure.subplots(len(rows), 2, squeeze=False, width_ratios=[2.6, 1])
        for (left, right), (title, curves, axis) in zip(axes, rows, strict=True):
            _draw_curves(left, title, curves, axis)
            _draw_variances(right, curves, settled)
        handles, labels = _legend(axes[:, 0])
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)


def _curves(
    runs: Mapping[tuple[str, str, int], RunRecord], task: str, settled: bool
) -> tuple[list[Curve], str]:
    """The methods' curves over training."""
    by_method: dict[str, list[RunRecord]] = {}
    for (name, method, _), run in runs.items():
        if name == task:
            by_method.setdefault(method, []).append(run)
    axis = shared_axis(run for mine in by_method.values() for run in mine)
    found = [curve(method, mine, axis, settled=settled) for method, mine in by_method.items()]
    return [each for each in found if each is not None and each.places], axis


def _draw_curves(axes: Any, title: str, curves: Sequence[Curve], axis: str) -> None:
    for each in curves:
        colour = COLOURS.get(each.method, OTHERS)
        axes.plot(each.places, each.mean, color=colour, linewidth=1.3, label=each.method)
        axes.fill_between(each.places, each.low, each.high, color=colour, alpha=0.18, linewidth=0)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(axis)
    axes.set_ylabel("gradient norm;\nmean, range over seeds", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_variances(axes: Any, curves: Sequence[Curve], settled: bool) -> None:
    for place, each in enumerate(curves):
        if each.variances:
            colour = COLOURS.get(each.method, OTHERS)
            axes.bar(
                place,
                statistics.fmean(each.variances),
                width=0.66,
                color=colour,
                edgecolor="black",
                linewidth=0.4,
            )
            axes.plot([place] * len(each.variances), each.variances, "k.", markersize=3)
    axes.set_xticks(range(len(curves)), [each.method for each in curves], rotation=30, ha="right")
    axes.set_ylabel(
        f"variance {'after warm-up' if settled else 'over training'};\ndots: seeds", fontsize=8
    )
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """One entry for each method, whichever of the rows have it."""
    found: dict[str, Any] = {}
    for each in axes:
        handles, labels = each.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
