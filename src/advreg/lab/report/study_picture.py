"""The parameter study as a picture: a panel for each study, error bars over seeds, baselines as
lines across.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advreg.lab.drawing import COLOURS, OTHERS, PictureError, canvas, check_drawable
from advreg.lab.report.labels import counted, method_name, over_seeds, task_name
from advreg.lab.report.study import Findings, Mark, measure

_COLUMNS = 4
_LINES = {"smart": "--", "standard": ":"}  # as in the paper; it has no line for Standard
_OTHER_LINE = "-."


def draw_study(found: Findings, path: Path) -> None:
    """Draw it: dots are means, bars standard deviations over seeds; the default settings are
    ringed.

    Args:
        found: the numbers.
        path: .svg, .png or .pdf.
    """
    check_drawable(path)
    panels = [
        (panel.title, marks) for panel, marks in found.panels if any(mark.spread for mark in marks)
    ]
    if not panels:
        raise PictureError("picture has nothing to show: no run has finished")
    columns = min(len(panels), _COLUMNS)
    lines = -(-len(panels) // columns)
    with canvas(path, 0.6 + 2.6 * columns, 0.9 + 2.4 * lines, words_as_text=True) as figure:
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for axis, (title, marks) in zip(axes.flat, panels, strict=False):
            _draw_panel(axis, title, marks, found.baselines)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        for row in axes:
            row[0].set_ylabel(measure(found.record.task))
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle(_title(found), fontsize=9)


def _draw_panel(axis: Any, title: str, marks: Sequence[Mark], baselines: Sequence[Mark]) -> None:
    for line in baselines:
        if line.spread is not None:
            colour = COLOURS.get(line.method, OTHERS)
            axis.axhline(
                line.spread.mean,
                color=colour,
                linestyle=_LINES.get(line.method, _OTHER_LINE),
                label=line.label,
            )
            reach = line.spread.deviation or 0.0
            axis.axhspan(
                line.spread.mean - reach,
                line.spread.mean + reach,
                color=colour,
                alpha=0.10,
                linewidth=0,
            )
    shown = [
        (place, mark, mark.spread) for place, mark in enumerate(marks) if mark.spread is not None
    ]
    if shown:
        method = shown[0][1].method
        axis.errorbar(
            [place for place, _, _ in shown],
            [spread.mean for _, _, spread in shown],
            yerr=[spread.deviation or 0.0 for _, _, spread in shown],
            fmt="o",
            color=COLOURS.get(method, OTHERS),
            capsize=3,
            markersize=5,
            label=method_name(method),
        )
    for place, _, spread in (each for each in shown if each[1].usual):
        axis.plot(
            place,
            spread.mean,
            "o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor="black",
            zorder=3,
        )
    axis.set_xticks(range(len(marks)), [mark.label for mark in marks])
    axis.set_xlim(-0.6, len(marks) - 0.4)
    axis.set_xlabel(title, fontsize=8)
    axis.tick_params(labelleft=True)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _title(found: Findings) -> str:
    record = found.record
    model = str(record.task.settings.get("model", "")).rpartition("/")[2]
    runs = [run for variant in record.variants for run in variant.runs]
    done = sum(run.score is not None for run in runs)
    so_far = f" ({done} of {counted(len(runs), 'run')})" if done < len(runs) else ""
    seeds = f"{over_seeds(len(record.seeds))}{so_far}; ringed: default settings"
    task = task_name(record.task.name, record.task.title)
    return f"{method_name(record.method)} on {task}, {model}\n{seeds}"
