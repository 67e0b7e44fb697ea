"""Options that several methods share, each group with the one thing it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from torch import Tensor

from advreg.core.ascent import Ascent, EndRule, StepRule, ascend
from advreg.core.ball import Ball, Norm, Scope, Start, StartKind
from advreg.core.checks import check_choice, check_not_negative
from advreg.core.divergence import Divergence
from advreg.core.perturbation import Perturbation
from advreg.core.retry import Fitting
from advreg.core.schedule import Clock, Onset, Ramp
from advreg.methods.base import Batch, Dropout, ModelView, StepReport, option

START_AT = "share of the planned updates before which the step is standard training"


def plain(view: ModelView, batch: Batch) -> StepReport:
    """What standard training minimises."""
    loss = view.loss_at(batch)
    return StepReport(loss, loss.detach())


@dataclass
class WeightOptions:
    """The weight λ of a penalty over the course of a training."""

    weight: float = option(1.0, "λ, weight of the penalty")
    start_at: float = option(0.0, START_AT)
    ramp: Ramp = option(
        "constant", "constant; linear: λ rises linearly from 0; share: λ/(1+λ) does"
    )

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)
        self.onset  # built once to refuse bad values here and not in training  # noqa: B018

    @property
    def onset(self) -> Onset:
        return Onset(self.start_at, self.ramp)

    def weight_at(self, clock: Clock) -> float:
        """λ at this time."""
        return self.onset.weight(self.weight, clock)

    def total(
        self,
        task_loss: Tensor,
        penalty: Tensor,
        clock: Clock,
        measures: Mapping[str, Tensor | float] | None = None,
    ) -> StepReport:
        """L + λ · penalty, to be descended."""
        loss = task_loss + self.weight_at(clock) * penalty
        return StepReport(loss, task_loss.detach(), penalty.detach(), measures or {})


@dataclass
class TargetOptions(WeightOptions):
    """A penalty towards constant targets from earlier epochs; the first epoch has none."""

    normalise: bool = option(
        False, "divide the loss by 1 + λ: a weighted mean of the task loss and the penalty"
    )

    def weight_at(self, clock: Clock) -> float:
        weight = super().weight_at(clock)
        return weight if clock.epoch > 0 else 0.0

    def total(
        self,
        task_loss: Tensor,
        penalty: Tensor,
        clock: Clock,
        measures: Mapping[str, Tensor | float] | None = None,
    ) -> StepReport:
        report = super().total(task_loss, penalty, clock, measures)
        return (
            replace(report, loss=report.loss / (1 + self.weight_at(clock)))
            if self.normalise
            else report
        )

    @staticmethod
    def rows_of(logits: Tensor, labels: Tensor) -> Tensor:
        """One row of logits per label position: virtual tokens of prompt tuning come first and have
        no label.
        """
        if logits.dim() > 2:
            logits = logits[:, logits.shape[1] - labels.shape[1] :]
        return logits.flatten(0, -2)


@dataclass
class PenaltyOptions(WeightOptions):
    """The regulariser λ · ℓ_v and how the two predictions in it are made."""

    divergence: Divergence = option(
        "kl", "kl: KL(f(x) ‖ f(x+δ)); symmetric_kl: mean of both directions"
    )
    detach_clean: bool = option(False, "let no gradient flow through the clean prediction f(x)")
    dropout: Dropout = option(
        "fresh", "dropout masks of the passes of a step: fresh, shared or off"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("divergence", self.divergence, get_args(Divergence))
        check_choice("dropout", self.dropout, get_args(Dropout))

    def descend(
        self,
        view: ModelView,
        batch: Batch,
        clock: Clock,
        clean: Tensor,
        perturbed: Tensor,
        delta: Perturbation,
    ) -> StepReport:
        """L + λ ℓ_v, to be descended."""
        penalty = self.penalty(view, batch, clean, perturbed)
        return self.total(
            view.loss(clean, batch), penalty, clock, {"delta_norm": delta.sentence_norm().mean()}
        )

    def penalty(self, view: ModelView, batch: Batch, clean: Tensor, perturbed: Tensor) -> Tensor:
        """ℓ_v with the denominator of the task loss, so that λ means the same at every batch
        size.
        """
        total = view.divergence(clean, perturbed, batch, self.divergence, self.detach_clean)
        return total / view.items(batch)


@dataclass
class AscentOptions(PenaltyOptions):
    """The inner maximisation max_{‖δ‖ ≤ ε} ℓ_v(x, δ, θ)."""

    radius: float = option(0.1, "ε, radius of the ball the perturbation stays in")
    norm: Norm = option("l2", "norm of the ball: l2 or linf")
    scope: Scope = option(
        "sample", "what the ball measures: the sample (all its tokens together) or each token"
    )
    ascent_steps: int = option(3, "S, gradient-ascent steps")
    step_size: float = option(0.1, "η, size of an ascent step")
    step_rule: StepRule = option(
        "normalised", "step along g/‖g‖ (normalised), g (gradient) or its sign"
    )
    step_end: EndRule = option(
        "project", "after a step: project into the ball, or rescale onto its surface"
    )
    start: StartKind = option(
        "uniform", "start of the ascent: uniform on the ball's surface, or normal"
    )
    start_scale: float = option(1e-5, "standard deviation of a normal start")
    _fitting: Fitting = field(default_factory=Fitting, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.ball, self.ascent, self.origin  # refuses bad values before training

    @property
    def ball(self) -> Ball:
        return Ball(self.radius, self.norm, self.scope)

    @property
    def ascent(self) -> Ascent:
        return Ascent(self.ascent_steps, self.step_size, self.step_rule, self.step_end)

    @property
    def origin(self) -> Start:
        return Start(self.start, self.start_scale)

    def worst_case(
        self, view: ModelView, batch: Batch, clean: Tensor, steps: int | None = None
    ) -> Perturbation:
        """Δ_i by ascent on ℓ_v(x_i, δ_i, θ), from a random start; ``steps`` in place of S if given.

        The clean prediction is a constant here: only δ moves. Samples do not depend on each other,
        so where memory runs out a part of the batch is climbed at a time.
        """
        ascent = self.ascent if steps is None else replace(self.ascent, steps=steps)
        start = self.origin.draw(view.zeros(batch), self.ball)

        def climb(rows: slice) -> Perturbation:
            part, target = (
                (batch, clean) if rows == whole else (view.part(batch, rows), clean[rows])
            )

            def objective(delta: Perturbation) -> Tensor:
                return view.divergence(
                    target.detach(), view.probe(part, delta), part, self.divergence
                )

            return ascend(objective, start.part(rows), ascent, self.ball, view.gradient)

        whole = slice(0, start.batch_size)
        return Perturbation.joined(self._fitting(start.batch_size, start.width, climb))
