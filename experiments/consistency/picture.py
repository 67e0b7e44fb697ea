"""The picture of the consistency contests: gain against time, a panel for each outcome that has
results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from inference import SHARE_OF_DEVIATION
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from outcomes import Entry, Outcome
from texts import PLACES
from wording import label, unit

from advreg.lab.drawing import COLOURS, OTHERS, check_drawable

_COLUMNS = 3
_MARKERS = {
    "ema": "s",
    "neftune": "^",
    "smoothing": "v",
    "twice the epochs": "D",
}  # of controls, which are grey
_TITLE = (
    "Gain over tuned Standard against the time of a training; bars: 95 % intervals over seeds,\n"
    "grey: within a third of Standard's standard deviation over seeds;\n"
    "points with nearly the same time are moved apart"
)
_TICKS, _FINE_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8), (0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5)
_NEAR = 1.6  # the longest time for which ticks are fine
_LEAST_GAP = 0.035  # between two points, of the width


@contextmanager
def canvas(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure to draw on, in inches, which is written to an SVG file with selectable words at the
    end; the same drawing gives the same file.
    """
    check_drawable(path)
    with matplotlib.rc_context({"svg.hashsalt": "advreg", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})


def draw(judged: Sequence[Outcome], path: Path) -> bool:
    """Draw the contestants that have all seeds; false where there is none."""
    panels = [outcome for outcome in judged if any(map(is_drawn, outcome.entries.values()))]
    if not panels:
        return False
    columns = min(len(panels), _COLUMNS)
    lines = -(-len(panels) // columns)
    with canvas(path, max(6.4, 0.6 + 3.4 * columns), 1.0 + 3.0 * lines) as figure:
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axis, outcome in zip(axes, panels, strict=False):
            _panel(axis, outcome)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        shown = {
            text: handle
            for axis in axes
            for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        how = {
            "loc": "outside lower center",
            "ncols": min(len(shown), 2 + columns),
            "frameon": False,
        }
        figure.legend(shown.values(), shown.keys(), **how)
        figure.suptitle(_TITLE, fontsize=9)
    return True


def is_drawn(entry: Entry) -> bool:
    """Whether it has all seeds, and a time that compares with Standard's."""
    return entry.gain is not None and entry.run_time is not None


def _panel(axis: Any, outcome: Outcome) -> None:
    entries = [entry for entry in outcome.entries.values() if is_drawn(entry)]
    third = SHARE_OF_DEVIATION * entries[0].deviation
    axis.axhspan(-third, third, color="black", alpha=0.06, linewidth=0)
    axis.axhline(0, color="black", linewidth=0.6)
    times = [math.log(entry.run_time or 1.0) for entry in entries]
    reach = max(*times, 0.0) - min(*times, 0.0)
    places = apart(times, _LEAST_GAP * reach)
    for entry, place in zip(entries, places, strict=True):
        _point(axis, entry, math.exp(place))
    low, high = (
        math.exp(min(*places, 0.0) - 0.06 * reach),
        math.exp(max(*places, 0.0) + 0.06 * reach),
    )
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_xticks(
        [tick for tick in (_TICKS if high > _NEAR else _FINE_TICKS) if low <= tick <= high]
    )
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title(PLACES[outcome.key].title, fontsize=9)
    axis.set_xlabel("time, × Standard", fontsize=8)
    axis.set_ylabel(f"gain, {unit(outcome)}", fontsize=8)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def apart(values: Sequence[float], least: float) -> list[float]:
    """The values moved as little as can be, by the sum of squares, so that they lie ``least`` apart
    in the same order.

    With i · least taken from the i-th smallest it is the isotonic regression, whose blocks of
    falling values are merged into their mean.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    blocks: list[list[float]] = []
    for rank, place in enumerate(order):
        blocks.append([values[place] - rank * least])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    moved = [fmean(block) for block in blocks for _ in block]
    found = dict(
        zip(order, (value + rank * least for rank, value in enumerate(moved)), strict=True)
    )
    return [found[place] for place in range(len(values))]


def _point(axis: Any, entry: Entry, place: float) -> None:
    assert entry.gain is not None
    name, method = entry.contestant.name, entry.contestant.method
    colour = COLOURS.get(method, OTHERS) if entry.is_method else "#777777"
    axis.errorbar(
        [place],
        [entry.gain.mean],
        yerr=[[entry.gain.mean - entry.gain.low], [entry.gain.high - entry.gain.mean]],
        fmt=_MARKERS.get(name, "o"),
        markersize=6 if entry.is_method else 4.5,
        color=colour,
        linewidth=1.2,
        capsize=2,
        label=label(name),
    )
