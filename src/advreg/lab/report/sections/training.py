"""Curves of losses and scores over training."""

from __future__ import annotations

from advreg.lab.report.compare import Results
from advreg.lab.report.curves import logged
from advreg.lab.report.page.parts import Part
from advreg.lab.report.sections.common import lines_of


def training_parts(found: Results, task: str) -> list[Part]:
    """Task loss and main metrics over training on a task."""
    parts: list[Part] = []
    parts += lines_of(found, task, "task loss", "loss", logged("task_loss", "loss"))
    for metric in found.contest.task(task).main_metrics:
        measure = logged(f"eval_{metric}")
        parts += lines_of(found, task, f"{metric} while training", metric, measure)
    return parts
