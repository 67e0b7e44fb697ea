"""The cost of each method as bars, drawn from records alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advreg.lab.drawing import COLOURS, OTHERS, PictureError, canvas, check_drawable
from advreg.records.bench import STANDARD, BenchRecord, Panel, Row

_COLUMNS = 4  # panels side by side


def draw(records: BenchRecord | Sequence[BenchRecord], path: Path) -> None:
    """Bars of each method's time relative to Standard, one group for each shape, and where the
    arithmetic puts it.

    Args:
        records: one bench or several; each of their shapes becomes a group.
        path: .svg, .png or .pdf.
    """
    check_drawable(path)
    records = [records] if isinstance(records, BenchRecord) else records
    groups = [
        (_title(record, panel), _bars(panel)) for record in records for panel in record.panels
    ]
    groups = [(title, rows) for title, rows in groups if rows]
    if not groups:
        raise PictureError(
            "picture has nothing to show: the record holds no row with a ratio to Standard"
        )
    names = list(dict.fromkeys(row.name for _, rows in groups for row in rows))
    columns = min(len(groups), _COLUMNS)
    lines = -(-len(groups) // columns)
    row = 0.15 + 0.15 * max(_label(name).count("\n") + 1 for name in names)  # inches
    with canvas(path, 2.2 + 2.6 * columns, lines * (1.0 + row * len(names)) + 1.2) as figure:
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
        for axis, (title, rows) in zip(axes, groups, strict=False):
            _draw_group(axis, title, rows, names)
        for axis in list(axes)[len(groups) :]:
            axis.set_visible(False)
        _legend(figure, axes[0], columns)


def _bars(panel: Panel) -> list[Row]:
    return [
        row
        for row in panel.rows
        if row.ratio is not None and row.against == STANDARD and row.phase != "sweep"
    ]


def _title(record: BenchRecord, panel: Panel) -> str:
    settings, device = record.settings, record.hardware.get("device", "cpu")
    compiled = ", compiled" if settings.get("compile") else ""
    model = str(settings.get("model", "")).rpartition("/")[2]
    about = f"{model}, {settings.get('precision')}{compiled}, {device}"
    return f"{panel.batch} × {panel.tokens} tokens\n" + textwrap.fill(about, 34)


def _label(name: str) -> str:
    return textwrap.fill(name, 42)


def _draw_group(axis: Any, title: str, rows: Sequence[Row], names: Sequence[str]) -> None:
    for row in rows:
        if row.ratio is None:
            continue
        place, ratio = names.index(row.name), row.ratio
        colour = COLOURS.get(row.method, OTHERS)
        axis.barh(place, ratio.median, height=0.66, color=colour, edgecolor="black", linewidth=0.4)
        whisker = [[ratio.median - ratio.quartile_1], [ratio.quartile_3 - ratio.median]]
        axis.errorbar(ratio.median, place, xerr=whisker, color="black", linewidth=0.9, capsize=2)
        ends = [ratio.quartile_3]
        if row.arithmetic is not None:
            axis.vlines(row.arithmetic, place - 0.45, place + 0.45, color="#CC0000", linewidth=2)
            ends.append(row.arithmetic)
        axis.annotate(
            f"{ratio.median:.2f}",
            (max(ends), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axis.set_title(title, fontsize=9)
    axis.set_yticks(range(len(names)), [_label(name) for name in names])
    axis.tick_params(labelleft=axis.get_subplotspec().is_first_col())
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.margins(x=0.16)
    axis.set_xlim(left=0)
    axis.set_xlabel("time of a step, × Standard")
    axis.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, axis: Any, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(
            facecolor="#BBBBBB",
            edgecolor="black",
            linewidth=0.4,
            label="measured, median over rounds",
        ),
        axis.errorbar(
            [],
            [],
            xerr=[],
            color="black",
            linewidth=0.9,
            capsize=2,
            label="quartiles of the rounds",
        ),
        Line2D(
            [],
            [],
            color="#CC0000",
            linewidth=2,
            label="the paper's expectation: its passes by arithmetic",
        ),
        Line2D([], [], color="black", linewidth=0.8, linestyle=":", label="Standard"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, 2), frameon=False)
