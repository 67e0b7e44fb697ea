"""Online label smoothing (Zhang et al. 2020): the mean prediction for a class is the soft label of
that class.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import kl, widen
from advreg.core.schedule import Clock
from advreg.core.sketch import WHOLE_AT_MOST, log_of
from advreg.methods.base import (
    Backward,
    Batch,
    Method,
    MethodState,
    ModelView,
    Need,
    Passes,
    StepReport,
    UnsupportedError,
    Update,
    register,
)
from advreg.methods.options import TargetOptions


@register("ols")
@dataclass
class OLS(TargetOptions, Method):
    """Smooth each label towards the mean prediction for its class.

    L(θ) + λ · KL(s_y ‖ f(x)),  s_c the mean prediction in the last epoch over the samples of class
    c that were predicted correctly, uniform if there were none. The first epoch has no s and is
    standard training.

    Reference: Zhang et al., *Delving Deep into Label Smoothing*, 2020.

    Differs from the authors' code: the loss is CE + λ KL, theirs ½ CE + ½ CE(s_y), which is
    ``weight=1, normalise=True`` up to the entropy of s_y, a constant.
    """

    paper = "Zhang et al. 2020"
    cost = "1 forward, 1 backward"
    needs = frozenset[Need]({"predictions"})

    # targets: s, (C, C), zero in the first epoch; sums, (C, C), and counts, (C,), of this epoch's
    # correct predictions
    _kept: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _epoch: int = field(default=0, init=False, repr=False)

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        logits = task.logits(batch)
        task_loss = task.loss(logits, batch)
        self._require_classes(task, logits, batch)
        labels, mask = task.targets(batch)
        rows, mask = self.rows_of(logits, labels), mask.flatten()
        labels = labels.flatten().masked_fill(~mask, 0)
        targets = self._targets_in(clock.epoch, rows)[labels]
        penalty = torch.zeros_like(task_loss)
        if self.weight_at(clock) > 0:
            moved = kl(log_of(targets), rows).masked_fill(~mask | (targets.sum(-1) == 0), 0.0)
            penalty = moved.sum() / task.items(batch)
        self._add(rows.detach(), labels, mask)
        return self.total(task_loss, penalty, clock)

    def _require_classes(self, task: ModelView, logits: Tensor, batch: Batch) -> None:
        kind, outputs = task.prediction(logits, batch), logits.shape[-1]
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

    def _targets_in(self, epoch: int, rows: Tensor) -> Tensor:
        """s, (C, C): at a new epoch, the mean correct predictions of the last one."""
        classes = rows.shape[-1]
        if not self._kept:
            self._keep(widen(rows.new_zeros(classes, classes)))
        elif epoch != self._epoch:
            sums, counts = (self._kept[name].to(rows.device) for name in ("sums", "counts"))
            self._keep(
                torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], 1 / classes)
            )
        self._epoch = epoch
        return self._kept["targets"].to(rows.device)

    def _keep(self, targets: Tensor) -> None:
        """Set s, and start counting from zero."""
        self._kept = {
            "targets": targets,
            "sums": torch.zeros_like(targets),
            "counts": torch.zeros_like(targets[0]),
        }

    def _add(self, rows: Tensor, labels: Tensor, mask: Tensor) -> None:
        """Add the correct predictions of this step."""
        probabilities = F.softmax(widen(rows), dim=-1)
        right = (mask & (rows.argmax(-1) == labels)).to(probabilities.dtype)
        for name, added in (("sums", right[:, None] * probabilities), ("counts", right)):
            self._kept[name] = self._kept[name].to(rows.device).index_add(0, labels, added)

    @property
    def memory_bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self._kept.values())

    def state(self) -> MethodState:
        return MethodState(dict(self._kept), {"epoch": str(self._epoch)})

    def load_state(self, state: MethodState) -> None:
        self._kept, self._epoch = dict(state.tensors), int(state.facts["epoch"])

    def passes(self) -> Passes:
        return Passes(1, 1)
