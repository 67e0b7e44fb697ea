"""A study as numbers and tables. All scores are out of 100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.kinds.registry import Scale, scale_of
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
from advreg.lab.report.statistics import Spread, mean_of
from advreg.lab.report.tables import Cell, Table, best_cells, markdown
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
        usual: whether these are the default settings of the method that is studied.
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
    usual = next((each for each in record.variants if _is_usual(each, record.method)), None)
    panels = [
        (panel, [_mark(point.label, variants[point.variant], usual) for point in panel.points])
        for panel in record.panels
    ]
    lines = [variants[name] for name in record.baselines]
    return Findings(
        record, panels, [_mark(method_name(each.method), each, usual) for each in lines]
    )


def _is_usual(variant: StudiedVariant, method: str) -> bool:
    return variant.method == method and not variant.changes


def scores_by_seed(variant: StudiedVariant) -> dict[int, float]:
    """The scores of the runs that finished."""
    return {run.seed: run.score for run in variant.runs if run.score is not None}


def _mark(label: str, variant: StudiedVariant, usual: StudiedVariant | None) -> Mark:
    scores, difference = scores_by_seed(variant), None
    if usual is not None and usual is not variant:
        difference = Spread.paired(scores, scores_by_seed(usual))
    return Mark(
        label=label,
        method=variant.method,
        spread=Spread.of(list(scores.values())),
        seconds=mean_of(run.seconds for run in variant.runs if run.score is not None),
        asked=len(variant.runs),
        failed=any(run.error is not None for run in variant.runs),
        usual=variant is usual,
        difference=difference,
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
    header = ["", "score", "s per run"]
    unit = " in percent" if is_percentage(record.task) else ""
    caption = (
        f"{panel.name}: {panel.title}. {title(record)}, {measure(record.task)}{unit}, "
        f"{over_seeds(len(record.seeds))}. The best point is bold."
    )
    if any(mark.difference is not None for mark in shown):
        header.append("minus default")
        caption += (
            " Minus default: paired by seed, with the 95 % confidence interval of the mean "
            "(Student's t)."
        )
    scale = scale_of(record.task.main_metrics)
    texts = [spread_text(mark.spread, mark.asked, mark.failed, scale.decimals) for mark in shown]
    scores = best_cells(texts, [mark.spread for mark in marks], scale)
    rows = [
        _cells(mark, score, scale)[: len(header)] for mark, score in zip(shown, scores, strict=True)
    ]
    return Table(caption, header, rows)


def _cells(mark: Mark, score: Cell, scale: Scale) -> list[Cell | str]:
    name = f"{mark.label} (default)" if mark.usual else mark.label
    return [
        name,
        score,
        number_text(mark.seconds, 1),
        difference_text(mark.difference, scale.decimals),
    ]


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
