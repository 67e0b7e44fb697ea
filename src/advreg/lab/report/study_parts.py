"""What a report says of studies, and of probing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advreg.lab.report.compare import STANDARD
from advreg.lab.report.figures import (
    DASHED,
    DOTTED,
    Level,
    Lines,
    Look,
    Rows,
    Series,
    looks,
    rounded,
    violin_of,
)
from advreg.lab.report.gather import Gathered
from advreg.lab.report.groups import Contest, Study, studies
from advreg.lab.report.labels import NOTHING, method_name, task_name, value_text
from advreg.lab.report.parts import Part, Section
from advreg.lab.report.render import Sheet, is_percentage, score_name, task_title
from advreg.lab.report.statistics import Spread
from advreg.lab.report.study import Findings, Mark, findings, measure, sheets
from advreg.records.study import Panel

_DASHES = {"smart": DASHED, STANDARD: DOTTED}


def study_parts(contest: Contest) -> list[Part]:
    """The panels of a study that was asked for; else a picture for each option that varies."""
    if contest.study is not None:
        found = findings(contest.study)
        parts: list[Part] = []
        for (panel, marks), sheet in zip(found.panels, sheets(found), strict=True):
            parts += (
                [_panel_figure(found, panel, marks)] if any(mark.spread for mark in marks) else []
            )
            parts.append(sheet)
        return parts
    return [_option_figure(contest, study) for study in studies(contest)]


def _panel_figure(found: Findings, panel: Panel, marks: Sequence[Mark]) -> Lines:
    """The same as the study's own picture shows."""
    task, method = found.record.task, found.record.method
    spreads = {float(place): mark.spread for place, mark in enumerate(marks)}
    return Lines(
        title=f"{panel.name}: {method_name(method)} on {task_name(task.name, task.title)}",
        x=panel.title,
        y=f"{measure(task)}{', percent' if is_percentage(task) else ''}",
        series=[_series(looks([method], [method], [method_name(method)])[method], spreads)],
        levels=_levels(
            {mark.method: mark.spread.mean for mark in found.baselines if mark.spread is not None}
        ),
        reach="bars",
        ticks=[mark.label for mark in marks],
    )


def _option_figure(contest: Contest, study: Study) -> Lines:
    labels, task = [line.label for line in study.lines], contest.task(study.task)
    lines = looks(labels, [study.method] * len(labels), labels)
    values = list(dict.fromkeys(value for line in study.lines for value in line.scores))
    numbers = [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    numeric = len(numbers) == len(values)
    places = {
        value: float(value) if numeric else float(place) for place, value in enumerate(values)
    }
    return Lines(
        title=_option_title(contest, study),
        x=study.option,
        y=f"{score_name(task)} on {task.scored_on}{', percent' if is_percentage(task) else ''}",
        series=[
            _series(
                lines[line.label],
                {places[value]: Spread.of(scores) for value, scores in line.scores.items()},
            )
            for line in study.lines
        ],
        levels=_levels(
            {name: statistics.fmean(scores) for name, scores in study.references.items()}
        ),
        reach="bars",
        ticks=() if numeric else [value_text(value) for value in values],
        logarithmic=numeric and min(numbers) > 0 and max(numbers) / min(numbers) > 20,
    )


def _option_title(contest: Contest, study: Study) -> str:
    together = f" (with {', '.join(study.with_it)})" if study.with_it else ""
    task = task_title(contest.results, study.task)
    return f"{task}: {study.option}{together} of {method_name(study.method)}"


def _levels(means: Mapping[str, float]) -> list[Level]:
    """Lines across: SMART and Standard as in the paper."""
    shown = looks(list(means), list(means), list(map(method_name, means)))
    return [
        Level(replace(shown[name], dash=_DASHES.get(name, "")), rounded(mean))
        for name, mean in means.items()
    ]


def _series(look: Look, spreads: Mapping[float, Spread | None]) -> Series:
    known = {place: spread for place, spread in spreads.items() if spread is not None}
    reach = {place: spread.deviation or 0.0 for place, spread in known.items()}
    return Series(
        look,
        list(known),
        [rounded(spread.mean) for spread in known.values()],
        [rounded(spread.mean - reach[place]) for place, spread in known.items()],
        [rounded(spread.mean + reach[place]) for place, spread in known.items()],
    )


# ---- probing


def probing_section(found: Gathered) -> Section:
    """Violins of the heads' scores, and a table of their means."""
    parts: list[Part] = []
    for record in found.probes:
        by_task: dict[str, dict[str, list[float]]] = {}
        for result in record.results:
            by_task.setdefault(result.task, {}).setdefault(result.label, []).extend(result.scores)
        labels = list(dict.fromkeys(result.label for result in record.results))
        shown = looks(labels, labels, list(map(method_name, labels)))
        rows = [
            [
                method_name(label),
                *(_spread_text(scores.get(label, [])) for scores in by_task.values()),
            ]
            for label in labels
        ]
        sources = sorted(
            {result.trained_on for result in record.results if result.trained_on is not None}
        )
        after = f" after training on {', '.join(sources)}" if sources else ""
        parts.append(
            Sheet(
                f"Score in percent, mean ± sd over heads; encoders frozen{after}.",
                ["", *by_task],
                rows,
            )
        )
        told = {"value": "median", "interval": "quartiles", "dots": "heads"}
        parts += [
            Rows(
                title=task,
                x="score of the heads, percent",
                rows=[
                    violin_of(shown[label], values) for label, values in methods.items() if values
                ],
                told=told,
            )
            for task, methods in by_task.items()
        ]
    intro = (
        "Encoders are frozen and only a head is fitted on another task: how much do their "
        "representations hold?"
    )
    return Section("probing", "Probing", intro, parts)


def _spread_text(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    if spread is None:
        return NOTHING
    return f"{spread.mean:.1f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.1f}")
