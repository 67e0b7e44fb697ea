"""Probing: how much the representations of frozen encoders hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.report.labels import method_name, method_order, spread_text, task_name
from advreg.lab.report.page.parts import Part, Section
from advreg.lab.report.pictures.figures import Rows, looks, quartiles_of
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Table
from advreg.records.bench import Spread as Quartiles
from advreg.records.probe import ProbeRecord, ProbeResult


def probing_section(records: Sequence[ProbeRecord]) -> Section:
    """A table of means, and the scores of the heads."""
    parts: list[Part] = []
    for record in records:
        parts += [scores_table(record.results), *_figures(record.results)]
    intro = (
        "Encoders are frozen and only a head is fitted on another task. Small dots are heads, the "
        "line shows quartiles, the large dot the median."
    )
    return Section("probing", "Probing", intro, parts)


def draw_probing(results: Sequence[ProbeResult], path: Path) -> None:
    """Write the scores of the heads to a file."""
    save(_figures(results), path, "Scores of heads on frozen encoders" + _sources(results))


def by_task(results: Sequence[ProbeResult]) -> dict[str, dict[str, list[float]]]:
    """Task → label → all scores, in the order of tables; seeds of one label are together."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in sorted(results, key=lambda result: method_order(result.label)):
        found.setdefault(result.task, {}).setdefault(result.label, []).extend(result.scores)
    return found


def _sources(results: Sequence[ProbeResult]) -> str:
    sources = sorted({task_name(each.trained_on) for each in results if each.trained_on})
    return f" after training on {', '.join(sources)}" if sources else ""


def scores_table(results: Sequence[ProbeResult]) -> Table:
    """A row for each encoder, and a column for each task."""
    tasks = by_task(results)
    labels = dict.fromkeys(label for scores in tasks.values() for label in scores)
    rows = []
    for label in labels:
        spreads = [Spread.of(scores.get(label, [])) for scores in tasks.values()]
        rows.append([method_name(label), *map(spread_text, spreads)])
    caption = f"Score in percent, mean ± sd over heads; encoders frozen{_sources(results)}."
    return Table(caption, ["", *map(task_name, tasks)], rows)


def _figures(results: Sequence[ProbeResult]) -> list[Rows]:
    shown, figures = looks({each.label: method_name(each.label) for each in results}), []
    for task, scores in by_task(results).items():
        rows = []
        for label, values in scores.items():
            quartiles = Quartiles.of(values)
            if quartiles is not None:
                rows.append(replace(quartiles_of(shown[label], quartiles), dots=values))
        if rows:
            axis = "score of the heads, percent"
            figures.append(Rows(title=task_name(task), x=axis, marks=rows))
    return figures
