"""FreeAT (Shafahi et al. 2019): the gradient of the input comes free with each update of the
weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from advreg.core.ascent import Ascent
from advreg.core.ball import Ball, Norm, Scope
from advreg.core.checks import check_count, check_share
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Onset
from advreg.methods.base import (
    Backward,
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
    "freeat",
    title="FreeAT",
    paper="Shafahi et al. 2019",
    cost="m forward, m backward, m updates",
    needs=("perturbation",),
    traits=("repeats_backward", "updates_itself"),
    tune={
        "understanding": {"replays": (2, 3), "radius": (1e-3, 1e-2)},
        "fine-tuning": {"radius": (1e-3, 1e-2), "replays": (2, 3)},
        "small": {"radius": (1e-4, 1e-3)},
        "translation": {"replays": (2, 3), "radius": (1e-3, 1e-2)},
    },
)
@dataclass
class FreeAT(Method):
    """Replay each batch m times; every replay updates the weights *and* moves δ along the same
    gradient.

    for r = 1 … m:  θ ← θ − τ ∇_θ L(f(x+δ), y),  δ ← Π(δ + η sign ∇_δ L(f(x+δ), y)).

    δ starts at zero and persists over the replays. The learning-rate schedule advances once per
    batch. Under gradient accumulation the whole group of micro-batches is replayed together, since
    it is one batch to the optimizer.

    Reference: Shafahi et al., *Adversarial Training for Free!*, 2019, algorithm 1.

    Differs from the authors' code: δ is not carried to the next batch (sentences differ in length),
    and the number of epochs is not divided by m: train for ``epochs / replays`` to spend what
    Standard spends.

    Example:
        >>> from advreg import prepare
        >>> session = prepare(model, loader, FreeAT(replays=2), optimizer)
        >>> reports = [session.step(batch) for batch in session.loader]
        >>> all(bool(report.loss > 0) for report in reports)
        True
    """

    replays: int = option(3, "m, how often each batch is replayed", check=check_count)
    radius: float = option(0.01, "ε, radius of the ball the perturbation stays in")
    norm: Norm = option("linf", "norm of the ball: l2 or linf")
    scope: Scope = option("token", "what the ball measures: the sample or each token")
    step_size: float = option(0.01, "η, size of a step of δ")
    step_rule: Literal["sign", "normalised"] = option(
        "sign", "step along the sign of g, or g/‖g‖ (normalised)"
    )
    dropout: Dropout = option("fresh", "dropout masks of the replays: fresh, shared or off")
    start_at: float = option(0.0, START_AT, check=check_share)
    _held: list[tuple[Batch, Perturbation]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.ball, self.ascent  # refuse bad values before training

    @property
    def ball(self) -> Ball:
        return Ball(self.radius, self.norm, self.scope)

    @property
    def ascent(self) -> Ascent:
        return Ascent(self.replays, self.step_size, self.step_rule, "project")

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        if step.update is None:
            raise ValueError(
                "freeat updates the weights between replays; pass Step(clock, update=...), a "
                "function that takes an optimizer step and clears the gradients"
            )
        if not Onset(self.start_at).begun(step.clock):
            return plain(view, batch)
        self._held.append((batch, view.zeros(batch)))
        if not step.clock.closes_group:
            nothing = torch.zeros((), device=self._held[-1][1].device)
            return StepReport(nothing, nothing)
        group, self._held = self._held, []
        with view.dropout(self.dropout):
            for _ in range(self.replays - 1):
                with view.accumulating():
                    moved = [
                        self.visit(view, batch, delta, step.backward) for batch, delta in group[:-1]
                    ]
                group = [*moved, self.visit(view, *group[-1], step.backward)]
                step.update()
            total = self.last_replay(view, group, step.backward)
        norm = torch.stack([delta.sentence_norm().mean() for _, delta in group]).mean()
        return StepReport(total, total.detach(), measures={"delta_norm": norm})

    def visit(
        self, view: ModelView, batch: Batch, delta: Perturbation, backward: Backward
    ) -> tuple[Batch, Perturbation]:
        """Add the gradient of one micro-batch at δ, and move its δ along it."""
        point = delta.leaf()
        backward(view.loss_at(batch, point))
        return batch, self.ascent.move(point, point.collected(), self.ball)

    def last_replay(
        self, view: ModelView, group: list[tuple[Batch, Perturbation]], backward: Backward
    ) -> Tensor:
        """The loss of the group; all but the last micro-batch are propagated."""
        before = torch.zeros((), device=group[-1][1].device)
        with view.accumulating():
            for batch, delta in group[:-1]:
                loss = view.loss_at(batch, delta.leaf())
                backward(loss)
                before = before + loss.detach()
        batch, delta = group[-1]
        return before + view.loss_at(batch, delta.leaf())

    def passes(self) -> Passes:
        return Passes(self.replays, self.replays)
