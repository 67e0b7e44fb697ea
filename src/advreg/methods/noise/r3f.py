"""R3F (Aghajanyan et al. 2020): random noise in place of the ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from advreg.core.ball import normal_noise, uniform_noise
from advreg.core.checks import check_not_negative
from advreg.core.divergence import Divergence
from advreg.core.perturbation import Perturbation
from advreg.methods.base import (
    Batch,
    ModelView,
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
    equation 6; without R4F, their variant that bounds the Lipschitz constant of the head.

    Differs from the authors' code: the symmetric KL is the mean of the two directions, not their
    sum (so their λ is half of ours).

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> method = R3F(noise_scale=0.1)
        >>> report = method.step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> bool(report.penalty > 0)
        True
    """

    divergence: Divergence = option(
        "symmetric_kl", "kl, or symmetric_kl: the mean of both directions"
    )
    noise: Noise = option("uniform", "distribution of the noise: uniform in (−σ, σ), or normal")
    noise_scale: float = option(1e-5, "σ, scale of the noise", check=check_not_negative)

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        delta = self.draw(view.zeros(batch))
        perturbed = self.beside(clean, delta)
        norm = {"delta_norm": delta.sentence_norm().mean()}
        return self.compared(view, batch, clean.logits, perturbed, norm)

    def draw(self, zeros: Perturbation) -> Perturbation:
        """z, at the real tokens."""
        if self.noise == "normal":
            return zeros.map(lambda values, mask: normal_noise(values, mask, self.noise_scale))
        return zeros.map(lambda values, mask: self.noise_scale * uniform_noise(values, mask))
