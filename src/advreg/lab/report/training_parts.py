"""What a report says of the training: curves and gradient norms."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from advreg.lab.report.curves import GRADIENT_NORM, Measure, curve, logged, shared_axis
from advreg.lab.report.figures import (
    Level,
    Lines,
    Row,
    Rows,
    rounded,
    series_of,
)
from advreg.lab.report.groups import Contest
from advreg.lab.report.parts import Part
from advreg.lab.report.render import task_title
from advreg.lab.report.score_parts import label_looks


def line_figure(
    contest: Contest,
    task: str,
    title: str,
    unit: str,
    measure: Callable[[str], Measure],
    levels: Sequence[Level] = (),
    zero: bool = False,
) -> Lines | None:
    """What was logged over training on a task; ``measure`` gives what to take of a label's logs."""
    shown, runs = label_looks(contest), contest.of(task)
    axis = shared_axis(run.record for mine in runs.values() for run in mine)
    curves = {
        label: curve(label, [run.record for run in mine], axis, measure(label))
        for label, mine in runs.items()
    }
    series = [
        series_of(shown[label], each)
        for label, each in curves.items()
        if each is not None and each.places
    ]
    if not series:
        return None
    return Lines(title=title, x=axis, y=unit, series=series, levels=levels, zero=zero)


def always(measure: Measure) -> Callable[[str], Measure]:
    """The same measure for every label."""
    return lambda _: measure


def titled(contest: Contest, task: str, what: str) -> str:
    """A picture's title, with the task if there are several."""
    return (
        f"{task_title(contest.results, task)}: {what}"
        if len(contest.results.tasks) > 1
        else what.capitalize()
    )


def training_parts(contest: Contest) -> list[Part]:
    """Task loss and scores over training."""
    found: list[Part | None] = []
    for task in contest.record.tasks:
        title = titled(contest, task.name, "task loss")
        found.append(
            line_figure(contest, task.name, title, "loss", always(logged("task_loss", "loss")))
        )
        for metric in task.main_metrics:
            title = titled(contest, task.name, f"{metric} while training")
            found.append(
                line_figure(contest, task.name, title, metric, always(logged(f"eval_{metric}")))
            )
    return [part for part in found if part is not None]


def gradient_parts(contest: Contest) -> list[Part]:
    """The gradient's norm over training, and its variance."""
    parts: list[Part] = []
    shown = label_looks(contest)
    for task in contest.results.tasks:
        title = titled(contest, task, "gradient norm")
        lines = line_figure(contest, task, title, "norm", always(GRADIENT_NORM), zero=True)
        if lines is None:
            continue
        parts.append(lines)
        rows = []
        for label, runs in contest.of(task).items():
            each = curve(label, [run.record for run in runs], lines.x)
            if each is not None and each.variances:
                dots = [rounded(value) for value in each.variances]
                rows.append(Row(shown[label], statistics.fmean(each.variances), dots=dots))
        if rows:
            told = {"value": "mean over seeds", "dots": "seeds"}
            title = titled(contest, task, "variance of the gradient norm")
            parts.append(
                Rows(title=title, x="variance over training", rows=rows, bars=True, told=told)
            )
    return parts
