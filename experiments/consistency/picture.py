"""The picture of the consistency contests: gain against time, a panel for each outcome that has results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference import SHARE_OF_DEVIATION
from outcomes import Entry, Outcome
from texts import PLACES
from wording import label, unit

from advreg.drawing import COLOURS, OTHERS, canvas

_COLUMNS = 3
_MARKERS = {"ema": "s", "neftune": "^", "smoothing": "v", "twice the epochs": "D"}  # of controls, which are grey
_TITLE = (
    "Gain over tuned Standard against the time of a training; bars: 95 % intervals over seeds,\n"
    "grey: within a third of Standard's standard deviation over seeds"
)
_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)


def draw(judged: Sequence[Outcome], path: Path) -> bool:
    """Draw the contestants that have all seeds; false where there is none."""
    panels = [outcome for outcome in judged if any(entry.gain for entry in outcome.entries.values())]
    if not panels:
        return False
    columns = min(len(panels), _COLUMNS)
    lines = -(-len(panels) // columns)
    with canvas(path, max(6.4, 0.6 + 3.4 * columns), 1.0 + 3.0 * lines, words_as_text=True) as figure:
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axis, outcome in zip(axes, panels, strict=False):
            _panel(axis, outcome)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        shown = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        how = {"loc": "outside lower center", "ncols": min(len(shown), 2 + columns), "frameon": False}
        figure.legend(shown.values(), shown.keys(), **how)
        figure.suptitle(_TITLE, fontsize=9)
    return True


def _panel(axis: Any, outcome: Outcome) -> None:
    entries = [entry for entry in outcome.entries.values() if entry.gain is not None]
    third = SHARE_OF_DEVIATION * entries[0].deviation
    axis.axhspan(-third, third, color="black", alpha=0.06, linewidth=0)
    axis.axhline(0, color="black", linewidth=0.6)
    for entry in entries:
        _point(axis, entry)
    times = [entry.run_time for entry in entries]
    axis.set_xscale("log")
    axis.set_xlim(0.9 * min(*times, 1.0), 1.15 * max(times))
    axis.set_xticks([tick for tick in _TICKS if 0.9 * min(*times, 1.0) <= tick <= 1.15 * max(times)], minor=False)
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title(PLACES[outcome.key].title, fontsize=9)
    axis.set_xlabel("time, × Standard", fontsize=8)
    axis.set_ylabel(f"gain, {unit(outcome)}", fontsize=8)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _point(axis: Any, entry: Entry) -> None:
    assert entry.gain is not None
    name, method = entry.contestant.name, entry.contestant.method
    colour = COLOURS.get(method, OTHERS) if entry.is_method else "#777777"
    axis.errorbar(
        [entry.run_time],
        [entry.gain.mean],
        yerr=[[entry.gain.mean - entry.gain.low], [entry.gain.high - entry.gain.mean]],
        fmt=_MARKERS.get(name, "o"),
        markersize=6 if entry.is_method else 4.5,
        color=colour,
        linewidth=1.2,
        capsize=2,
        label=label(name),
    )
