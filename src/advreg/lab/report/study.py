"""A study as numbers and tables: what the values of its runs come to. All scores are in percent."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.report.labels import method_name, metric_name, over_seeds, task_name
from advreg.lab.report.render import (
    Sheet,
    best_places,
    difference_text,
    is_percentage,
    markdown_table,
    number_text,
    shortened,
    spread_text,
)
from advreg.lab.report.statistics import Spread
from advreg.records.compare import ComparedTask
from advreg.records.study import Panel, StudiedVariant, StudyRecord


@dataclass(frozen=True)
class Mark:
    """A point of a panel, or a baseline.

    Args:
        label: what stands below it.
        method: its method.
        spread: of the scores over the seeds that finished; none did: ``None``.
        seconds: training of one run, mean over seeds.
        asked: how many seeds were to be trained.
        failed: did a run fail?
        usual: are these the default settings?
        difference: from the default settings, paired by seed; of themselves none.
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
    """All that tables and picture show: the marks of each panel, and the baselines, which hold for
    all of them.
    """

    record: StudyRecord
    panels: Sequence[tuple[Panel, Sequence[Mark]]]
    baselines: Sequence[Mark]


def findings(record: StudyRecord) -> Findings:
    """Compute every number."""
    variants = {variant.name: variant for variant in record.variants}
    usual = next(
        (each for each in record.variants if each.method == record.method and not each.changes),
        None,
    )
    panels = [
        (panel, [_mark(point.label, variants[point.variant], usual) for point in panel.points])
        for panel in record.panels
    ]
    lines = [variants[name] for name in record.baselines]
    return Findings(
        record, panels, [_mark(method_name(variant.method), variant, usual) for variant in lines]
    )


def scores_by_seed(variant: StudiedVariant) -> dict[int, float]:
    """Of the runs that finished."""
    return {run.seed: run.score for run in variant.runs if run.score is not None}


def _mark(label: str, variant: StudiedVariant, usual: StudiedVariant | None) -> Mark:
    scores = scores_by_seed(variant)
    seconds = [
        run.seconds for run in variant.runs if run.score is not None and run.seconds is not None
    ]
    return Mark(
        label=label,
        method=variant.method,
        spread=Spread.of(list(scores.values())),
        seconds=statistics.fmean(seconds) if seconds else None,
        asked=len(variant.runs),
        failed=any(run.error is not None for run in variant.runs),
        usual=not variant.changes,
        difference=None
        if usual in (None, variant)
        else Spread.paired(scores, scores_by_seed(usual)),
    )


def failures(record: StudyRecord) -> list[str]:
    """Runs without a result, and why."""
    return [
        f"{run.folder}: {shortened(run.error or 'not finished; the same command goes on with it')}"
        for variant in record.variants
        for run in variant.runs
        if run.score is None
    ]


# ---- tables


def sheets(found: Findings) -> list[Sheet]:
    """A table for each panel, with the baselines below."""
    return [_sheet(found, panel, marks) for panel, marks in found.panels]


def _sheet(found: Findings, panel: Panel, marks: Sequence[Mark]) -> Sheet:
    record = found.record
    rows = [*marks, *found.baselines]
    names = [f"{mark.label} (default)" if mark.usual else mark.label for mark in marks]
    names += [mark.label for mark in found.baselines]
    task = task_name(record.task.name, record.task.title)
    caption = (
        f"{panel.name}: {panel.title}. {method_name(record.method)} on {task}, "
        f"{measure(record.task)}{' in percent' if is_percentage(record.task) else ''}, "
        f"{over_seeds(len(record.seeds))}. The best point is bold."
    )
    header = ["", "score", "s per run"]
    scores = [spread_text(mark.spread, mark.asked, mark.failed) for mark in rows]
    columns = [names, scores, [number_text(mark.seconds, 1) for mark in rows]]
    if any(mark.difference is not None for mark in rows):
        header.append("minus default")
        columns.append([difference_text(mark.difference) for mark in rows])
        caption += (
            " Minus default: paired by seed, with the 95 % confidence interval of the mean "
            "(Student's t)."
        )
    return Sheet(
        caption,
        header,
        [list(row) for row in zip(*columns, strict=True)],
        frozenset((row, 1) for row in best_places([mark.spread for mark in marks])),
    )


def measure(task: ComparedTask) -> str:
    """What a task is judged by, and on which set."""
    return f"{' and '.join(map(metric_name, task.main_metrics))} on {task.scored_on}"


def notes(record: StudyRecord) -> list[str]:
    """What a reader must know beside the numbers."""
    return remarks(record) + [f"no result: {text}" for text in failures(record)]


def remarks(record: StudyRecord) -> list[str]:
    """The same, without the runs that have no result."""
    unfinished = f"the study is {record.status}: numbers are those of the runs that finished"
    return [*record.notes, *([] if record.status == "finished" else [unfinished])]


def to_markdown(found: Findings) -> str:
    """A part of a page: a table for each panel, and notes."""
    parts = [f"{sheet.caption}\n\n{markdown_table(sheet)}" for sheet in sheets(found)]
    if told := notes(found.record):
        parts.append("Notes:\n\n" + "\n".join(f"- {line}" for line in told))
    return "\n\n".join(parts) + "\n"


def to_csv(found: Findings) -> str:
    """Every run's value, a line for each point and seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["study", "point", "method", "variant", "seed", "score", "seconds"])
    variants = {variant.name: variant for variant in found.record.variants}
    places = [
        (panel.name, point.label, point.variant)
        for panel in found.record.panels
        for point in panel.points
    ]
    places += [("baseline", variants[name].method, name) for name in found.record.baselines]
    for study, label, name in places:
        for run in variants[name].runs:
            writer.writerow(
                [study, label, variants[name].method, name, run.seed, run.score, run.seconds]
            )
    return out.getvalue()
