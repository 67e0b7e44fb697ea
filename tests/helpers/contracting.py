"""A method that writes weights: after each update it holds the head in the set ‖W‖₂ ≤ 1."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from advreg.methods import Method, Standard
from advreg.methods.base import (
    Batch,
    Constraint,
    ModelView,
    Passes,
    Step,
    StepReport,
    option,
    plain,
)


@dataclass
class Contracting(Method):
    """Standard training of a classifier whose head is 1-Lipschitz."""

    info = replace(Standard.info, name="contracting", needs=frozenset({"predictions"}))
    bound: float = option(1.0, "the largest spectral norm of the head")

    def constraints(self) -> Sequence[Constraint]:
        return (
            Constraint("whole_weights", "bound", "it needs all weights in every process"),
            Constraint("writes_weights", "bound", "it changes weights after an update"),
        )

    @torch.no_grad()
    def updated(self, view: ModelView) -> None:
        weight = view.parameters()["classifier.weight"]
        weight.div_((torch.linalg.matrix_norm(weight, ord=2) / self.bound).clamp_min(1.0))

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        return plain(view, batch)

    def passes(self) -> Passes:
        return Passes(1, 1)
