"""Probing: how much the representations of frozen encoders hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.report.labels import method_name, method_order, spread_text, task_name
from advreg.lab.report.page.parts import Part, Section
from advreg.lab.report.pictures.figures import Look, Row, Rows, looks, quartiles_of
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Cell, Table, best_cells
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
    labels = list(dict.fromkeys(label for scores in tasks.values() for label in scores))
    columns = [_column(scores, labels) for scores in tasks.values()]
    rows = list(zip(map(method_name, labels), *columns, strict=True))
    caption = (
        f"Score in percent, mean ± sd over heads; encoders frozen{_sources(results)}. The best are "
        "bold."
    )
    return Table(caption, ["", *map(task_name, tasks)], rows)


def _column(scores: Mapping[str, Sequence[float]], labels: Sequence[str]) -> list[Cell]:
    spreads = [Spread.of(scores.get(label, [])) for label in labels]
    return best_cells(list(map(spread_text, spreads)), spreads)


def _figures(results: Sequence[ProbeResult]) -> list[Rows]:
    shown = looks({each.label: method_name(each.label) for each in results})
    axis = "score of the heads, percent"
    return [
        Rows(title=task_name(task), x=axis, marks=_rows(scores, shown))
        for task, scores in by_task(results).items()
        if any(scores.values())
    ]


def _rows(scores: Mapping[str, Sequence[float]], shown: Mapping[str, Look]) -> list[Row]:
    """Median, quartiles and each value of the labels that have any."""
    spreads = {label: Quartiles.of(values) for label, values in scores.items()}
    return [
        replace(quartiles_of(shown[label], spread), dots=scores[label])
        for label, spread in spreads.items()
        if spread is not None
    ]
