"""Standard training: the task loss alone, the line every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from advreg.core.schedule import Clock
from advreg.methods.base import (
    Backward,
    Batch,
    Method,
    ModelView,
    Passes,
    StepReport,
    Update,
    register,
)
from advreg.methods.options import plain


@register("standard")
@dataclass
class Standard(Method):
    """min_θ L(θ): no perturbation at all."""

    paper = "–"
    cost = "1 forward, 1 backward"
    needs = frozenset()

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        return plain(task, batch)

    def passes(self) -> Passes:
        return Passes(1, 1)
