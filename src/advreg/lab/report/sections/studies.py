"""Studies: one option varies, and all others are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.report.compare import Results
from advreg.lab.report.groups import STANDARD
from advreg.lab.report.labels import (
    counted,
    is_percentage,
    method_name,
    model_name,
    over_seeds,
)
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import (
    DASHED,
    DOTTED,
    Level,
    Lines,
    Look,
    Series,
    looks,
)
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.statistics import Spread
from advreg.lab.report.study import Findings, Mark, findings, measure, tables, title
from advreg.records.study import Panel

_DASHES = {"smart": DASHED, STANDARD: DOTTED}


def study_parts(found: Results) -> list[Part]:
    """The panels of a study: a figure and a table for each."""
    if found.contest.study is None:
        return []
    studied = findings(found.contest.study)
    parts: list[Part] = []
    for (panel, marks), table in zip(studied.panels, tables(studied), strict=True):
        parts += [*_panel_figures(studied, panel, marks), table]
    return parts


def draw_study(found: Findings, path: Path) -> None:
    """Write the panels of a study to a file."""
    record = found.record
    runs = [run for variant in record.variants for run in variant.runs]
    done = sum(run.score is not None for run in runs)
    so_far = f" ({done} of {counted(len(runs), 'run')})" if done < len(runs) else ""
    model = model_name(str(record.task.settings.get("model", "")))
    figures = [
        each for panel, marks in found.panels for each in _panel_figures(found, panel, marks)
    ]
    seeds = f"{over_seeds(len(record.seeds))}{so_far}; *: default settings"
    save(figures, path, f"{title(record)}, {model}; {seeds}")


def _panel_figures(found: Findings, panel: Panel, marks: Sequence[Mark]) -> list[Lines]:
    """The figure of a panel, if a run has finished."""
    record, spreads = found.record, {float(n): mark.spread for n, mark in enumerate(marks)}
    if not any(spreads.values()):
        return []
    known = {mark.method: mark.spread for mark in found.baselines if mark.spread is not None}
    look = looks({record.method: method_name(record.method)})[record.method]
    return [
        Lines(
            title=f"{panel.name}: {title(record)}",
            x=panel.title,
            y=f"{measure(record.task)}{', percent' if is_percentage(record.task) else ''}",
            series=[_series(look, spreads)],
            levels=_levels(known),
            reach="bars",
            ticks=[f"{mark.label}*" if mark.usual else mark.label for mark in marks],
        )
    ]


def _levels(spreads: Mapping[str, Spread]) -> list[Level]:
    """Lines across; SMART and Standard as in the paper."""
    shown = looks({name: method_name(name) for name in spreads})
    return [
        Level(
            replace(shown[name], dash=_DASHES.get(name, "")), spread.mean, spread.deviation or 0.0
        )
        for name, spread in spreads.items()
    ]


def _series(look: Look, spreads: Mapping[float, Spread | None]) -> Series:
    known = {place: spread for place, spread in spreads.items() if spread is not None}
    ends = [(spread.mean, spread.deviation or 0.0) for spread in known.values()]
    low, high = [mean - reach for mean, reach in ends], [mean + reach for mean, reach in ends]
    return Series(look, list(known), [mean for mean, _ in ends], low, high)
