"""Benches: tables of a step's cost, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advreg.lab.report.labels import NOTHING, bytes_text
from advreg.lab.report.page.parts import Part, Section
from advreg.lab.report.pictures.figures import Rows, looks, quartiles_of
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.tables import Table
from advreg.records.bench import STANDARD, BenchRecord, Panel, Row, Spread, WholeRun

_STEPS_HEADER = ("method", "ms", "×", "passes", "memory", "cache")
_WHOLE_HEADER = ("method", "refreshes", "× Standard", "× SMART")
_AXIS = "time of a step, × Standard"
_STEPS_CAPTION = (
    "ms: median over rounds; ×: relative to Standard (a trainer: to the stock one), within rounds, "
    "with quartiles; "
    "passes: forward/backward (what they cost by arithmetic)"
)


def bench_section(records: Sequence[BenchRecord]) -> Section:
    """The tables and bars of benches."""
    parts: list[Part] = []
    for record in records:
        for panel in record.panels:
            parts += [*panel_tables(record, panel), *_bars(panel, bench_title(record, panel))]
    intro = (
        "Time of a step, in rounds in which every method takes its turn. Bars are medians over "
        "rounds, lines on them quartiles; upright marks are the cost of the passes by arithmetic."
    )
    return Section("bench", "Bench", intro, parts)


def panel_tables(record: BenchRecord, panel: Panel) -> list[Table]:
    """What a step costs, and what a whole run costs."""
    about = bench_title(record, panel)
    tables = [
        Table(f"{about}. {_STEPS_CAPTION}.", _STEPS_HEADER, list(map(_step_cells, panel.rows)))
    ]
    if panel.whole:
        caption = f"{about}: a whole run of {record.settings.get('epochs')} epochs."
        tables.append(Table(caption, _WHOLE_HEADER, list(map(_whole_cells, panel.whole))))
    return tables


def draw_benches(records: Sequence[BenchRecord], path: Path) -> None:
    """Write the bars of all shapes to a file."""
    panels = [(record, panel) for record in records for panel in record.panels]
    figures = [
        figure for record, panel in panels for figure in _bars(panel, bench_title(record, panel))
    ]
    title = "Median of the rounds, with quartiles; upright marks: cost of the passes by arithmetic"
    save(figures, path, title)


def _bars(panel: Panel, about: str) -> list[Rows]:
    shown = [row for row in panel.rows if row.against == STANDARD and row.phase != "sweep"]
    look = looks({row.name: row.name for row in shown}, {row.name: row.method for row in shown})
    timed = [(row, row.ratio) for row in shown if row.ratio is not None]
    bars = [quartiles_of(look[row.name], ratio, row.arithmetic) for row, ratio in timed]
    return [Rows(title=about, x=_AXIS, marks=bars, zero=True)] if bars else []


def bench_title(record: BenchRecord, panel: Panel) -> str:
    """What was measured, and where."""
    settings = record.settings
    compiled = ", compiled" if settings.get("compile") else ""
    shape = f"{panel.batch} × {panel.tokens}"
    about = f"{settings.get('model')}, {shape}, {settings.get('precision')}{compiled}"
    return f"{about}, {record.hardware.get('device')}"


def _step_cells(row: Row) -> list[str]:
    """A row of the table of steps."""
    ratio = _spread(row.ratio) if row.error is None else row.error
    time = NOTHING if row.time is None else f"{row.time.median:.1f}"
    memory = bytes_text(row.peak_bytes), bytes_text(row.cache_bytes)
    return [row.name, time, ratio, _passes(row), *memory]


def _whole_cells(run: WholeRun) -> list[str]:
    """A row of the table of whole runs."""
    refreshes = str(run.refreshes) if run.refreshes else NOTHING
    return [run.name, refreshes, _spread(run.to_standard), _spread(run.to_smart)]


def _passes(row: Row) -> str:
    if row.forward is None or row.backward is None or row.arithmetic is None:
        return NOTHING
    return f"{row.forward:.3g}/{row.backward:.3g} ({row.arithmetic:.2f})"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.median:.2f} ({spread.quartile_1:.2f}–{spread.quartile_3:.2f})"
