"""FreeLB (Zhu et al. 2019): every point of the ascent is also a training point."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from advreg.core.ascent import Ascent
from advreg.core.ball import Ball, uniform_noise
from advreg.core.checks import check_not_negative, check_share
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Onset
from advreg.methods.base import (
    Batch,
    Dropout,
    Method,
    ModelView,
    Passes,
    Step,
    StepReport,
    option,
    plain,
    register,
)
from advreg.methods.regulariser import START_AT


@register(
    "freelb",
    title="FreeLB",
    paper="Zhu et al. 2019",
    cost="1+S forward, 1+S backward",
    needs=("perturbation",),
    traits=("repeats_backward",),
    tune={
        "understanding": {"ascent_steps": (2, 3), "step_size": (0.03, 0.1)},
        "fine-tuning": {"radius": (0.02, 0.1), "ascent_steps": (2, 3)},
        "small": {"radius": (0.003, 0.01, 0.03)},
        "translation": {"ascent_steps": (2, 3), "step_size": (0.03, 0.1)},
    },
)
@dataclass
class FreeLB(Method):
    """Minimise the task loss averaged over the whole path of the ascent.

    1/(1+S) · Σ_{s=0}^{S} L(f(x + δ_s), y),  δ_{s+1} = Π(δ_s + η g_s/‖g_s‖₂),  g_s = ∇_δ L(f(x +
    δ_s), y).

    One backward pass gives both the parameters' gradient and g_s, which gives the method its name.

    Reference: Zhu et al., *FreeLB: Enhanced Adversarial Training for Natural Language
    Understanding*, 2019, algorithm 1. Its K training points are 1 + S here.

    Differs from the authors' code: the masks of dropout are held fixed by the random state, not by
    patched layers; ``radius`` is always enforced (theirs treats 0 as no bound).

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> method = FreeLB(radius=0.3, ascent_steps=1)
        >>> report = method.step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> report.penalty is None
        True
    """

    radius: float = option(0.1, "ε, radius of the l2 ball of a sentence")
    ascent_steps: int = option(2, "S, gradient-ascent steps; 1+S points are trained on")
    step_size: float = option(0.1, "η, size of an ascent step, along the normalised gradient")
    start_scale: float = option(
        0.05, "magnitude of the start U(−1, 1)·magnitude/√(L·D)", check=check_not_negative
    )
    dropout: Dropout = option(
        "shared", "dropout masks of the passes of a step: shared, fresh or off"
    )
    start_at: float = option(0.0, START_AT, check=check_share)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.ball, self.ascent  # refuse bad values before training

    @property
    def ball(self) -> Ball:
        return Ball(self.radius, "l2", "sample")

    @property
    def ascent(self) -> Ascent:
        return Ascent(self.ascent_steps, self.step_size, "normalised", "project")

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        if not Onset(self.start_at).begun(step.clock):
            return plain(view, batch)
        points = 1 + self.ascent_steps
        delta = self.draw(view.zeros(batch))
        before = torch.zeros((), device=delta.device)  # the losses of the points already propagated
        with view.dropout(self.dropout):
            for _ in range(self.ascent_steps):
                point = delta.leaf()
                with view.accumulating():
                    loss = view.loss_at(batch, point) / points
                    step.backward(loss)
                before = before + loss.detach()
                delta = self.ascent.move(point, point.collected(), self.ball)
            total = before + view.loss_at(batch, delta.leaf()) / points
        return StepReport(
            total, total.detach(), measures={"delta_norm": delta.sentence_norm().mean()}
        )

    def draw(self, zeros: Perturbation) -> Perturbation:
        """δ_0 = U(−1, 1) · magnitude / √(L·D), L the real tokens of the sample: a norm of about
        magnitude/√3.
        """

        def start(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            entries = mask.sum(1).clamp_min(1) * values.shape[-1]  # (B,)
            return (
                uniform_noise(values, mask)
                * (self.start_scale / entries.to(values.dtype).sqrt())[:, None, None]
            )

        return self.ball.project(zeros.map(start))

    def passes(self) -> Passes:
        return Passes(1 + self.ascent_steps, 1 + self.ascent_steps)
