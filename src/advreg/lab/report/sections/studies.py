"""Studies: one option varies, and all others are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.report.compare import Results
from advreg.lab.report.groups import STANDARD
from advreg.lab.report.labels import counted, is_percentage, method_name, model_name, over_seeds
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import DASHED, DOTTED, Lines, Look, Series, looks
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.statistics import Spread
from advreg.lab.report.study import Findings, Mark, findings, measure, tables, title
from advreg.records.study import Panel


def study_parts(found: Results) -> list[Part]:
    """The panels of a study: a figure and a table for each."""
    if found.contest.study is None:
        return []
    studied = findings(found.contest.study)
    parts: list[Part] = []
    for (panel, marks), table in zip(studied.panels, tables(studied), strict=True):
        parts += [*_figures(studied, panel, marks), table]
    return parts


def draw_study(found: Findings, path: Path) -> None:
    """Write the panels of a study to a file."""
    record = found.record
    runs = [run for variant in record.variants for run in variant.runs]
    done = sum(run.score is not None for run in runs)
    so_far = f" ({done} of {counted(len(runs), 'run')})" if done < len(runs) else ""
    model = model_name(str(record.task.settings.get("model", "")))
    seeds = f"{over_seeds(len(record.seeds))}{so_far}; *: default settings"
    figures = [each for panel, marks in found.panels for each in _figures(found, panel, marks)]
    save(figures, path, f"{title(record)}, {model}; {seeds}")


def _figures(found: Findings, panel: Panel, marks: Sequence[Mark]) -> list[Lines]:
    """The figure of a panel, if a run has finished."""
    record = found.record
    spreads = {float(place): mark.spread for place, mark in enumerate(marks) if mark.spread}
    if not spreads:
        return []
    look = looks({record.method: method_name(record.method)})[record.method]
    figure = Lines(
        title=f"{panel.name}: {title(record)}",
        x=panel.title,
        y=f"{measure(record.task)}{', percent' if is_percentage(record.task) else ''}",
        marks=[_series(look, list(spreads), list(spreads.values())), *_levels(found, len(marks))],
        ticks=[f"{mark.label}*" if mark.usual else mark.label for mark in marks],
    )
    return [figure]


def _levels(found: Findings, places: int) -> list[Series]:
    """A line across the panel for each baseline; Standard is dotted, others are dashed."""
    shown = looks({mark.method: mark.label for mark in found.baselines})
    edges = [-1.0, float(places)]
    return [
        _series(
            replace(shown[mark.method], dash=DOTTED if mark.method == STANDARD else DASHED),
            edges,
            [mark.spread] * len(edges),
        )
        for mark in found.baselines
        if mark.spread is not None
    ]


def _series(look: Look, places: Sequence[float], spreads: Sequence[Spread]) -> Series:
    """Means with a band of one standard deviation."""
    means = [spread.mean for spread in spreads]
    reach = [spread.deviation or 0.0 for spread in spreads]
    low = [mean - each for mean, each in zip(means, reach, strict=True)]
    high = [mean + each for mean, each in zip(means, reach, strict=True)]
    return Series(look, places, means, low, high)
