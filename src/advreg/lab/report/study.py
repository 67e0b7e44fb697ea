"""A study as numbers and tables. All scores are out of 100."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.kinds.registry import scale_of
from advreg.lab.report.labels import (
    NOT_FINISHED,
    difference_text,
    is_percentage,
    method_name,
    metric_name,
    number_text,
    over_seeds,
    shortened,
    spread_text,
    task_name,
)
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Cell, Table, best_cells, csv_text, markdown
from advreg.records.compare import ComparedTask
from advreg.records.study import Panel, StudiedVariant, StudyRecord


@dataclass(frozen=True)
class Mark:
    """A point of a panel, or a baseline.

    Args:
        label: its text on the axis.
        method: its method.
        spread: of the scores over the seeds that finished; ``None`` if none did.
        seconds: training of one run, mean over seeds.
        asked: the number of seeds that were asked for.
        failed: whether a run failed.
        usual: whether these are the default settings.
        difference: from the default settings, paired by seed; ``None`` for these themselves.
    """

    label: str
    method: str
    spread: Spread | None
    seconds: float | None
    asked: int
    failed: bool
    usual: bool
    difference: Spread | None


@dataclass(frozen=True)
class Findings:
    """The marks of each panel, and the baselines of all panels."""

    record: StudyRecord
    panels: Sequence[tuple[Panel, Sequence[Mark]]]
    baselines: Sequence[Mark]


def findings(record: StudyRecord) -> Findings:
    """Compute every number."""
    variants = {variant.name: variant for variant in record.variants}
    defaults = [each for each in record.variants if not each.changes]
    usual = next((each for each in defaults if each.method == record.method), None)
    panels = [
        (panel, [_mark(point.label, variants[point.variant], usual) for point in panel.points])
        for panel in record.panels
    ]
    lines = [variants[name] for name in record.baselines]
    baselines = [_mark(method_name(variant.method), variant, usual) for variant in lines]
    return Findings(record, panels, baselines)


def scores_by_seed(variant: StudiedVariant) -> dict[int, float]:
    """The scores of the runs that finished."""
    return {run.seed: run.score for run in variant.runs if run.score is not None}


def _mark(label: str, variant: StudiedVariant, usual: StudiedVariant | None) -> Mark:
    scores = scores_by_seed(variant)
    seconds = [
        run.seconds for run in variant.runs if run.score is not None and run.seconds is not None
    ]
    is_other = usual is not None and usual is not variant
    return Mark(
        label=label,
        method=variant.method,
        spread=Spread.of(list(scores.values())),
        seconds=statistics.fmean(seconds) if seconds else None,
        asked=len(variant.runs),
        failed=any(run.error is not None for run in variant.runs),
        usual=not variant.changes,
        difference=Spread.paired(scores, scores_by_seed(usual)) if usual and is_other else None,
    )


def failures(record: StudyRecord) -> list[str]:
    """Runs without a result, and the reasons."""
    return [
        f"{run.folder}: {shortened(run.error or NOT_FINISHED)}"
        for variant in record.variants
        for run in variant.runs
        if run.score is None
    ]


# ---- tables


def tables(found: Findings) -> list[Table]:
    """A table for each panel, with the baselines below."""
    return [_table(found, panel, marks) for panel, marks in found.panels]


def _table(found: Findings, panel: Panel, marks: Sequence[Mark]) -> Table:
    record, shown = found.record, [*marks, *found.baselines]
    names = [f"{mark.label} (default)" if mark.usual else mark.label for mark in marks]
    names += [mark.label for mark in found.baselines]
    scale = scale_of(record.task.main_metrics)
    texts = [spread_text(mark.spread, mark.asked, mark.failed, scale.decimals) for mark in shown]
    scores = best_cells(texts, [mark.spread for mark in marks], scale)
    seconds = [number_text(mark.seconds, 1) for mark in shown]
    rows: list[list[Cell | str]] = [list(row) for row in zip(names, scores, seconds, strict=True)]
    header = ["", "score", "s per run"]
    caption = (
        f"{panel.name}: {panel.title}. {title(record)}, "
        f"{measure(record.task)}{' in percent' if is_percentage(record.task) else ''}, "
        f"{over_seeds(len(record.seeds))}. The best point is bold."
    )
    if any(mark.difference is not None for mark in shown):
        header.append("minus default")
        for row, mark in zip(rows, shown, strict=True):
            row.append(difference_text(mark.difference, scale.decimals))
        caption += (
            " Minus default: paired by seed, with the 95 % confidence interval of the mean "
            "(Student's t)."
        )
    return Table(caption, header, rows)


def title(record: StudyRecord) -> str:
    """The method and the task."""
    return f"{method_name(record.method)} on {task_name(record.task.name, record.task.title)}"


def measure(task: ComparedTask) -> str:
    """The metrics of a task's score, and the set they are taken on."""
    return f"{' and '.join(map(metric_name, task.main_metrics))} on {task.scored_on}"


def notes(record: StudyRecord) -> list[str]:
    """Caveats for the reader, then the runs without a result."""
    return remarks(record) + [f"no result: {text}" for text in failures(record)]


def remarks(record: StudyRecord) -> list[str]:
    """Caveats for the reader."""
    unfinished = f"the study is {record.status}: numbers cover the runs that finished"
    return [*record.notes, *([] if record.status == "finished" else [unfinished])]


def to_markdown(found: Findings) -> str:
    """A part of a page: a table for each panel, and notes."""
    parts = [f"{table.caption}\n\n{markdown(table)}" for table in tables(found)]
    if told := notes(found.record):
        parts.append("Notes:\n\n" + "\n".join(f"- {line}" for line in told))
    return "\n\n".join(parts) + "\n"


def to_csv(found: Findings) -> str:
    """The value of every run, a line for each point and seed."""
    record = found.record
    variants = {variant.name: variant for variant in record.variants}
    places = [
        (panel.name, point.label, point.variant)
        for panel in record.panels
        for point in panel.points
    ]
    places += [("baseline", variants[name].method, name) for name in record.baselines]
    return csv_text(
        ["study", "point", "method", "variant", "seed", "score", "seconds"],
        (
            [study, label, variants[name].method, name, run.seed, run.score, run.seconds]
            for study, label, name in places
            for run in variants[name].runs
        ),
    )
