"""Online label smoothing (Zhang et al. 2020): the mean prediction for a class is the soft label of
that class.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from advreg.core.divergence import kl
from advreg.core.sketch import WHOLE_AT_MOST, log_of
from advreg.memory.averages import ClassTargets
from advreg.methods.base import (
    Batch,
    ModelView,
    Step,
    UnsupportedError,
    register,
)
from advreg.methods.options import TargetOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "ols",
    title="Online label smoothing",
    paper="Zhang et al. 2020",
    cost="1 forward, 1 backward",
    needs=("predictions", "labels"),
    tune={
        "fine-tuning": {"weight": (1.0, 3.0, 10.0)},
        "small": {"weight": (1.0, 3.0, 10.0)},
    },
)
@dataclass
class OLS(TargetOptions):
    """Smooth each label towards the mean prediction for its class.

    L(θ) + λ · KL(s_y ‖ f(x)),  s_c the mean prediction in the last epoch over the samples of class
    c that were predicted correctly, uniform if there were none. The first epoch has no s and is
    standard training.

    Reference: Zhang et al., *Delving Deep into Label Smoothing*, 2020.

    Differs from the authors' code: the loss is CE + λ KL, theirs ½ CE + ½ CE(s_y), which is half
    of ``weight=1`` up to the entropy of s_y, a constant.

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> report = OLS().step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> bool(report.penalty == 0)  # in the first epoch
        True
    """

    memory: ClassTargets = field(
        default_factory=ClassTargets, init=False, repr=False, compare=False
    )

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        logits = clean.logits
        self._require_classes(view, logits, batch)
        labels, mask = view.targets(batch)
        rows, mask = self.rows_of(logits, labels), mask.flatten()
        labels = labels.flatten().masked_fill(~mask, 0)
        targets = self.memory.read(step.clock.epoch, rows)[labels]
        value = rows.new_zeros(())
        if self.weight_at(step.clock) > 0:
            moved = kl(log_of(targets), rows).masked_fill(~mask | (targets.sum(-1) == 0), 0.0)
            value = moved.sum() / view.items(batch)
        self.memory.write(rows.detach(), labels, mask)
        return Penalty(value)

    def _require_classes(self, view: ModelView, logits: Tensor, batch: Batch) -> None:
        kind, outputs = view.prediction(logits, batch), logits.shape[-1]
        if kind != "classes":
            what = "a regression" if kind == "value" else "several labels at once"
            raise UnsupportedError(
                f"ols needs one class for each prediction, got {what}; use temporal"
            )
        if outputs > WHOLE_AT_MOST:
            raise UnsupportedError(
                f"ols keeps a distribution for each of at most {WHOLE_AT_MOST} classes, got "
                f"{outputs}; use temporal"
            )
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise UnsupportedError(
                f"ols trains in one process so far, got {torch.distributed.get_world_size()}; "
                "start one, or use rdrop "
                "or simcut"
            )
