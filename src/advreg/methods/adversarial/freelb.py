"""FreeLB (Zhu et al. 2019): every point of the ascent is also a training point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch

from advreg.core.ascent import Ascent
from advreg.core.ball import Ball, uniform_noise
from advreg.core.checks import check_choice, check_not_negative
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Clock, Onset
from advreg.methods.base import (
    Backward,
    Batch,
    Dropout,
    Method,
    ModelView,
    Need,
    Passes,
    StepReport,
    Update,
    option,
    register,
)
from advreg.methods.options import START_AT, plain


@register("freelb")
@dataclass
class FreeLB(Method):
    """Minimise the task loss averaged over the whole path of the ascent.

    1/(1+S) · Σ_{s=0}^{S} L(f(x + δ_s), y),  δ_{s+1} = Π(δ_s + η g_s/‖g_s‖₂),  g_s = ∇_δ L(f(x +
    δ_s), y).

    One backward pass gives both the parameters' gradient and g_s, hence the name.

    Reference: Zhu et al., *FreeLB: Enhanced Adversarial Training for Natural Language
    Understanding*, 2019, algorithm 1. Its K training points are 1 + S here.

    Differs from the authors' code: the masks of dropout are held fixed by the random state, not by
    patched layers; ``radius`` is always enforced (theirs treats 0 as no bound).
    """

    paper = "Zhu et al. 2019"
    cost = "1+S forward, 1+S backward"
    needs = frozenset[Need]({"perturbation"})
    repeats_backward = True

    radius: float = option(0.1, "ε, radius of the l2 ball of a sentence")
    ascent_steps: int = option(2, "S, gradient-ascent steps; 1+S points are trained on")
    step_size: float = option(0.1, "η, size of an ascent step, along the normalised gradient")
    start_scale: float = option(0.05, "magnitude of the start U(−1, 1)·magnitude/√(L·D)")
    dropout: Dropout = option(
        "shared", "dropout masks of the passes of a step: shared, fresh or off"
    )
    start_at: float = option(0.0, START_AT)

    def __post_init__(self) -> None:
        (
            self.ball,
            self.ascent,
            Onset(self.start_at),
        )  # built once to refuse bad values here and not in training
        check_not_negative("start_scale", self.start_scale)
        check_choice("dropout", self.dropout, get_args(Dropout))

    @property
    def ball(self) -> Ball:
        return Ball(self.radius, "l2", "sample")

    @property
    def ascent(self) -> Ascent:
        return Ascent(self.ascent_steps, self.step_size, "normalised", "project")

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        if not Onset(self.start_at).begun(clock):
            return plain(task, batch)
        points = 1 + self.ascent_steps
        delta = self.draw(task.zeros(batch))
        before = torch.zeros((), device=delta.device)  # the losses of the points already propagated
        with task.dropout(self.dropout):
            for _ in range(self.ascent_steps):
                point = delta.leaf()
                with task.accumulating():
                    loss = task.loss_at(batch, point) / points
                    backward(loss)
                before = before + loss.detach()
                delta = self.ascent.move(point, point.collected(), self.ball)
            total = before + task.loss_at(batch, delta.leaf()) / points
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
