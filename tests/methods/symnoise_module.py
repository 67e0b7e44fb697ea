"""SymNoise (Yadav and Singh 2023): each embedding is moved both ways along a random sign vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from advreg.core.ball import uniform_noise
from advreg.core.checks import check_not_negative
from advreg.core.perturbation import Perturbation
from advreg.methods.base import Batch, Method, ModelView, Passes, Step, StepReport, option, register


@register(
    "symnoise",
    title="SymNoise",
    paper="Yadav and Singh 2023",
    cost="2 forward, 2 backward",
    needs=("perturbation",),
    traits=("repeats_backward",),
    tune={"fine-tuning": {"alpha": (5.0, 15.0)}, "small": {"alpha": (1.0, 5.0)}},
)
@dataclass
class SymNoise(Method):
    """Train on x + z and x − z.

    ½ [L(f(x + z), y) + L(f(x − z), y)],  z_i = ± α / √(L·D) with random signs, L the real tokens.

    Reference: Yadav and Singh, *SymNoise: Advancing Language Model Fine-tuning with Symmetric
    Noise*, 2023.

    Differs from the authors' code: none was published.
    """

    alpha: float = option(5.0, "α, magnitude of the noise")

    def __post_init__(self) -> None:
        check_not_negative("alpha", self.alpha)

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        noise = self.draw(view.zeros(batch))
        with view.accumulating():
            first = view.loss_at(batch, noise) / 2
            step.backward(first)
        total = first.detach() + view.loss_at(batch, noise.map(lambda values, _: -values)) / 2
        return StepReport(total, total.detach())

    def draw(self, zeros: Perturbation) -> Perturbation:
        """z, at the real tokens."""

        def signs(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            entries = mask.sum(1).clamp_min(1) * values.shape[-1]  # (B,)
            size = self.alpha / entries.to(values.dtype).sqrt()
            return uniform_noise(values, mask).sign() * size[:, None, None]

        return zeros.map(signs)

    def passes(self) -> Passes:
        return Passes(2, 2)
