"""Scores: tables, a picture for each task, and remarks."""

from __future__ import annotations

from advreg.lab.report.compare import Results
from advreg.lab.report.labels import score_name
from advreg.lab.report.page.parts import Bullets, Part
from advreg.lab.report.pictures.figures import Rows, row_of
from advreg.lab.report.score_tables import score_tables, task_title, unit
from advreg.lab.report.sections.common import looks_of


def score_parts(found: Results) -> list[Part]:
    """The scores of a contest."""
    first, *others = score_tables(found)
    figures = [_figure(found, task) for task in found.tasks]
    parts: list[Part] = [first]
    parts += [figure for figure in figures if any(len(row.dots) > 1 for row in figure.marks)]
    parts += others
    notes = found.contest.notes
    return [*parts, Bullets("Notes", notes)] if notes else parts


def _figure(found: Results, task: str) -> Rows:
    """Means with intervals and seeds."""
    shown, rows = looks_of(found, task), []
    for group in found.contest.on(task):
        spread = found.cells[task, group.label].main
        if spread is not None:
            scores = list(found.scores[task, group.label].values())
            rows.append(row_of(shown[group.label], scores, spread))
    about = found.contest.task(task)
    axis = f"{score_name(about)} on {about.scored_on}{unit(found, ', percent')}"
    return Rows(title=task_title(found, task), x=axis, marks=rows)
