"""SMART (Jiang et al. 2019): an ascent at every step, and a proximal pull towards the averaged
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advreg.core.checks import check_not_negative, check_share
from advreg.core.divergence import Divergence
from advreg.core.schedule import Clock
from advreg.methods.base import (
    Backward,
    Batch,
    Method,
    MethodState,
    ModelView,
    Passes,
    StepReport,
    Update,
    option,
    register,
)
from advreg.methods.options import AscentOptions, plain


@register("smart")
@dataclass
class Smart(AscentOptions, Method):
    """Smoothness-inducing regularisation with momentum Bregman proximal point optimisation.

    L(θ) + λ · max_{‖δ‖ ≤ ε} ℓ_v(x, δ, θ) + μ · D(f(x, θ), f(x, θ̃)),  θ̃ ← β θ̃ + (1 − β) θ after
    each update,

    with the symmetric KL divergence (squared error for regression) in both terms.

    Reference: Jiang et al., *SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural
    Language Models through Principled Regularized Optimization*, 2020, algorithm 1.

    Differs from the authors' code: the proximal term is there (their public code leaves it out; μ =
    0, the default, is their code and costs one pass less); the symmetric KL is the mean of its
    directions, not the sum; nothing is detached unless asked; ``site="block"`` of the task is where
    their code adds δ.
    """

    paper = "Jiang et al. 2019"
    cost = "2+S forward, 1+S backward (S of them w.r.t. δ only); +1 forward if μ > 0"

    divergence: Divergence = option(
        "symmetric_kl", "kl, or symmetric_kl: the mean of both directions"
    )
    proximal_weight: float = option(0.0, "μ, weight of the Bregman proximal term; 0 turns it off")
    proximal_momentum: float = option(
        0.99, "β, weight of the past in the moving average of the weights"
    )
    _average: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("proximal_weight", self.proximal_weight)
        check_share("proximal_momentum", self.proximal_momentum)

    @property
    def needs_whole_weights(self) -> str:
        return "proximal_weight" if self.proximal_weight > 0 else ""

    def concerns(self, epochs: float) -> Sequence[str]:
        return self.ascent.concerns()

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        if not self.onset.begun(clock):
            return plain(task, batch)
        with task.dropout(self.dropout):
            clean = task.logits(batch)
            delta = self.worst_case(task, batch, clean)
            report = self.descend(task, batch, clock, clean, task.peek(batch, delta), delta)
            if self.proximal_weight == 0:
                return report
            proximal = self.proximal(task, batch, clean)
        total = report.loss + self.proximal_weight * proximal
        return StepReport(
            total,
            report.task_loss,
            report.penalty,
            {**report.measures, "proximal": proximal.detach()},
        )

    def proximal(self, task: ModelView, batch: Batch, clean: Tensor) -> Tensor:
        """D(f(x, θ), f(x, θ̃)): how far the prediction is from the averaged model's."""
        mine = {name: value.detach() for name, value in task.parameters().items()}
        if not self._average:
            self._average = {name: value.clone() for name, value in mine.items()}
        self._average = {
            name: value.to(mine[name].device) for name, value in self._average.items()
        }  # when loaded: host
        past = task.averaged(batch, self._average)
        return task.divergence(past, clean, batch, self.divergence) / task.items(batch)

    @torch.no_grad()
    def updated(self, task: ModelView) -> None:
        for name, value in task.parameters().items() if self._average else ():
            self._average[name].lerp_(value, 1 - self.proximal_momentum)

    @property
    def memory_bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self._average.values())

    @property
    def remembers(self) -> bool:
        return self.proximal_weight > 0

    def state(self) -> MethodState:
        return MethodState(dict(self._average))

    def load_state(self, state: MethodState) -> None:
        self._average = dict(state.tensors)

    def passes(self) -> Passes:
        return Passes(2 + self.ascent_steps + (self.proximal_weight > 0), 1 + self.ascent_steps)
