"""Standard training: the task loss alone, the line every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from advreg.methods.base import (
    Batch,
    Method,
    ModelView,
    Passes,
    Step,
    StepReport,
    plain,
    register,
)


@register(
    "standard",
    title="Standard",
    paper="–",
    cost="1 forward, 1 backward",
    needs=(),
)
@dataclass
class Standard(Method):
    """min_θ L(θ): no perturbation at all."""

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        return plain(view, batch)

    def passes(self) -> Passes:
        return Passes(1, 1)
