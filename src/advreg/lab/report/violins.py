"""Scores of many seeds as violins: one panel for each task, one violin for each method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advreg.lab.drawing import COLOURS, OTHERS, PictureError, canvas, check_drawable

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # task → method → a score for each seed

_COLUMNS = 4


def draw_violins(scores: Scores, path: Path, title: str = "") -> None:
    """Draw them; every score is a dot, the white one is the median.

    Args:
        scores: by task and method, in the order they are to stand in.
        path: .svg, .png or .pdf.
        title: above all panels.
    """
    check_drawable(path)
    if not any(methods for methods in scores.values()):
        raise PictureError("picture has nothing to show: there are no scores")
    columns = min(len(scores), _COLUMNS)
    lines = -(-len(scores) // columns)
    names = list(dict.fromkeys(name for methods in scores.values() for name in methods))
    with canvas(path, 1.0 + columns * (0.8 + 0.62 * len(names)), 0.5 + 2.7 * lines) as figure:
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axis, (task, methods) in zip(axes, scores.items(), strict=False):
            _draw_task(axis, task, methods, names)
        for axis in axes[len(scores) :]:
            axis.set_visible(False)
        if title:
            figure.suptitle(title, fontsize=10)


def _draw_task(
    axis: Any, task: str, methods: Mapping[str, Sequence[float]], names: Sequence[str]
) -> None:
    for name, values in methods.items():
        place, colour = names.index(name), COLOURS.get(name, OTHERS)
        if max(values) > min(values):  # a violin of equal values has no width
            body = axis.violinplot([list(values)], [place], widths=0.8, showextrema=False)[
                "bodies"
            ][0]
            body.set(facecolor=colour, alpha=0.6, edgecolor="black", linewidth=0.5)
        axis.plot(
            [place] * len(values), list(values), "o", markersize=2.5, color="black", alpha=0.5
        )
        axis.plot(
            place,
            statistics.median(values),
            "o",
            markersize=5,
            color="white",
            markeredgecolor="black",
        )
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_title(task)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)
