"""R3F and R4F (Aghajanyan et al. 2020): random noise in place of the ascent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from advreg.core.ball import normal_noise, uniform_noise
from advreg.core.checks import check_choice, check_not_negative
from advreg.core.divergence import Divergence
from advreg.core.perturbation import Perturbation
from advreg.methods.base import (
    Batch,
    Constraint,
    ModelView,
    Passes,
    Step,
    option,
    register,
)
from advreg.methods.options import DivergenceOptions, DropoutOptions, FuseOptions
from advreg.methods.regulariser import CleanPass, Penalty

Noise = Literal["uniform", "normal"]


@register(
    "r3f",
    title="R3F",
    paper="Aghajanyan et al. 2020",
    cost="2 forward (fused), 1 backward",
    tune={
        "understanding": {"weight": (0.1, 0.5, 1.0, 5.0)},
        "fine-tuning": {"weight": (1.0, 3.0)},
        "small": {"noise_scale": (0.01, 0.1, 0.3), "weight": (0.5, 1.0)},
        "translation": {"weight": (0.5, 1.0, 2.0), "noise_scale": (1e-3, 1e-2)},
    },
)
@dataclass
class R3F(FuseOptions, DropoutOptions, DivergenceOptions):
    """Keep the prediction where it is under random noise.

    L(θ) + λ · ½ [KL(f(x) ‖ f(x+z)) + KL(f(x+z) ‖ f(x))],  z ~ U(−σ, σ) or N(0, σ²).

    Reference: Aghajanyan et al., *Better Fine-Tuning by Reducing Representational Collapse*, 2020,
    equation 6; R4F adds Lip(head) ≤ 1.

    Differs from the authors' code: the symmetric KL is the mean of the two directions, not their
    sum (so their λ is half of ours); ``spectral`` holds the head in the set ‖W‖₂ ≤ 1 by scaling it
    back after every update instead of re-parametrising it, so that the model keeps its parameters'
    names.
    """

    divergence: Divergence = option(
        "symmetric_kl", "kl, or symmetric_kl: the mean of both directions"
    )
    noise: Noise = option("uniform", "distribution of the noise: uniform in (−σ, σ), or normal")
    noise_scale: float = option(1e-5, "σ, scale of the noise")
    spectral: bool = option(
        False, "R4F: keep the spectral norm of the prediction head's matrix at most 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("noise", self.noise, get_args(Noise))
        check_not_negative("noise_scale", self.noise_scale)

    def constraints(self) -> Sequence[Constraint]:
        if not self.spectral:
            return ()
        return (
            Constraint("whole_weights", "spectral", "it needs all weights in every process"),
            Constraint("writes_weights", "spectral", "it changes weights after an update"),
        )

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        delta = self.draw(view.zeros(batch))
        perturbed = self.beside(clean, delta)
        norm = {"delta_norm": delta.sentence_norm().mean()}
        return self.compared(view, batch, clean.logits, perturbed, step, norm)

    def draw(self, zeros: Perturbation) -> Perturbation:
        """z, at the real tokens."""
        if self.noise == "normal":
            return zeros.map(lambda values, mask: normal_noise(values, mask, self.noise_scale))
        return zeros.map(lambda values, mask: self.noise_scale * uniform_noise(values, mask))

    def updated(self, view: ModelView) -> None:
        if self.spectral:
            contract_(view.head())

    def passes(self) -> Passes:
        return Passes(2, 1)


@torch.no_grad()
def contract_(head: torch.nn.Linear) -> None:
    """W ← W / max(1, ‖W‖₂): the head becomes 1-Lipschitz."""
    weight = head.weight
    norm = torch.linalg.matrix_norm(weight.float(), ord=2)
    weight.div_(norm.clamp_min(1.0).to(weight.dtype))
