"""SMART (Jiang et al. 2019): an ascent at every step, and a proximal pull towards the averaged
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from advreg.core.checks import check_not_negative, check_share
from advreg.core.divergence import Divergence
from advreg.memory.averages import WeightAverage
from advreg.methods.base import (
    Batch,
    Constraint,
    ModelView,
    Passes,
    Step,
    option,
    register,
)
from advreg.methods.options import AscentOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "smart",
    title="SMART",
    paper="Jiang et al. 2019",
    cost="2+S forward, 1+S backward (S of them w.r.t. δ only); +1 forward if μ > 0",
    tune={
        "understanding": {"ascent_steps": (1, 2), "step_size": (1e-4, 1e-5)},
        "fine-tuning": {"weight": (1.0, 3.0)},
        "small": {"radius": (0.1, 0.3, 1.0), "weight": (0.5, 1.0)},
        "translation": {"weight": (0.5, 1.0, 2.0)},
    },
)
@dataclass
class Smart(AscentOptions):
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

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> method = Smart(radius=0.3, ascent_steps=1)
        >>> report = method.step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> bool(report.penalty > 0)
        True
    """

    divergence: Divergence = option(
        "symmetric_kl", "kl, or symmetric_kl: the mean of both directions"
    )
    proximal_weight: float = option(
        0.0, "μ, weight of the Bregman proximal term; 0 turns it off", check=check_not_negative
    )
    proximal_momentum: float = option(
        0.99, "β, weight of the past in the moving average of the weights", check=check_share
    )
    memory: WeightAverage | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proximal_weight > 0:
            self.memory = WeightAverage(self.proximal_momentum)

    def constraints(self) -> Sequence[Constraint]:
        if self.memory is None:
            return ()
        why = "it needs all weights in every process"
        return (Constraint("whole_weights", "proximal_weight", why),)

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        delta = self.worst_case(view, batch, clean.logits)
        perturbed = view.bare_logits(batch, delta)
        norm = {"delta_norm": delta.sentence_norm().mean()}
        found = self.compared(view, batch, clean.logits, perturbed, norm)
        if self.memory is None:
            return found
        past = view.averaged(batch, self.memory.read(view.parameters()))
        proximal = view.divergence(past, clean.logits, batch, self.divergence) / view.items(batch)
        measures = {**found.measures, "proximal": proximal.detach()}
        return replace(found, measures=measures, extra=self.proximal_weight * proximal)

    def updated(self, view: ModelView) -> None:
        if self.memory is not None:
            self.memory.write(view.parameters())

    def passes(self) -> Passes:
        return Passes(2 + self.ascent_steps + (self.proximal_weight > 0), 1 + self.ascent_steps)
