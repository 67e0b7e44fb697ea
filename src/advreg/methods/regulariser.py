"""Methods whose objective is the task loss plus a penalty, and which can therefore be added up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from advreg.core.checks import check_not_negative, check_share
from advreg.core.perturbation import Cut, Perturbation
from advreg.core.schedule import Clock, Onset, Ramp
from advreg.methods.base import (
    Batch,
    Dropout,
    Method,
    ModelView,
    Step,
    StepReport,
    option,
    plain,
)

START_AT = "share of the planned updates before which the step is standard training"


@dataclass
class CleanPass:
    """The clean prediction of a step, made once for all penalties.

    Args:
        view: the model.
        batch: the batch.
    """

    view: ModelView
    batch: Batch
    _logits: Tensor | None = field(default=None, init=False)

    @property
    def logits(self) -> Tensor:
        """f(x)."""
        if self._logits is None:
            self._logits = self.view.logits(self.batch)
        return self._logits

    def beside(
        self, delta: Perturbation | Cut | None, fuse: bool = True, both_losses: bool = False
    ) -> Tensor:
        """f(x + δ), in one pass with the clean copy if that is still to be made; see
        :meth:`ModelView.paired_logits`.
        """
        if self._logits is None:
            self._logits, perturbed = self.view.paired_logits(self.batch, delta, fuse, both_losses)
            return perturbed
        return self.view.bare_logits(self.batch, delta)


@dataclass(frozen=True)
class Penalty:
    """What a regulariser adds to the task loss: λ · value + extra.

    Args:
        value: the penalty before its weight.
        measures: for the log.
        extra: a second term, weighted.
    """

    value: Tensor
    measures: Mapping[str, Tensor | float] = field(default_factory=dict)
    extra: Tensor | None = None


@dataclass
class Regulariser(Method):
    """A method that minimises L(θ) + λ · penalty.

    Regularisers add up: ``Temporal(weight=10) + Smart()`` minimises the task loss plus both
    penalties, which share the clean prediction.
    """

    weight: float = option(1.0, "λ, weight of the penalty", check=check_not_negative)
    start_at: float = option(0.0, START_AT, check=check_share)
    ramp: Ramp = option(
        "constant", "constant; linear: λ rises linearly from 0 to the end of the plan"
    )

    @property
    def onset(self) -> Onset:
        return Onset(self.start_at, self.ramp)

    def weight_at(self, clock: Clock) -> float:
        """λ at this time."""
        return self.onset.weight(self.weight, clock)

    def has_begun(self, clock: Clock) -> bool:
        """Whether :meth:`penalty` is due in this step; called once in each."""
        return self.onset.begun(clock)

    @abstractmethod
    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        """The penalty on this batch."""

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        return regularised([self], view, batch, step)


def dropout_of(parts: Sequence[Regulariser]) -> Dropout:
    """The dropout masks that these regularisers have in common."""
    modes: dict[Dropout, str] = {}
    for part in parts:
        if (mode := getattr(part, "dropout", None)) is not None:
            modes.setdefault(mode, part.info.name)
    if len(modes) > 1:
        (one, first), (other, second) = list(modes.items())[:2]
        raise ValueError(
            f"dropout must be the same for all parts, got '{one}' of {first} and '{other}' of "
            f"{second}: they share a pass; set one of them"
        )
    return next(iter(modes), "fresh")


def regularised(
    parts: Sequence[Regulariser], view: ModelView, batch: Batch, step: Step
) -> StepReport:
    """L + Σ λ · penalty of the regularisers that are due in this step.

    The report of several has their measures under their names, and as its penalty Σ λ · penalty.
    """
    begun = [part for part in parts if part.has_begun(step.clock)]
    if not begun:
        return plain(view, batch)
    clean = CleanPass(view, batch)
    with view.dropout(dropout_of(begun)):
        penalties = [part.penalty(view, batch, clean, step) for part in begun]
        task_loss = view.loss(clean.logits, batch)
    loss = task_loss
    weights = [part.weight_at(step.clock) for part in begun]
    for weight, penalty in zip(weights, penalties, strict=True):
        loss = loss + weight * penalty.value
        if penalty.extra is not None:
            loss = loss + penalty.extra
    value, measures = penalties[0].value.detach(), penalties[0].measures
    if len(parts) > 1:
        value = sum(
            (w * one.value.detach() for w, one in zip(weights, penalties, strict=True)),
            0.0 * value,
        )
        measures = {
            f"{part.info.name}.{measure}": found
            for part, one in zip(begun, penalties, strict=True)
            for measure, found in {**one.measures, "penalty": one.value.detach()}.items()
        }
    return StepReport(loss, task_loss.detach(), value, measures)
