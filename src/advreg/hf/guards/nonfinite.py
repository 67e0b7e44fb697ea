"""Detecting updates that are not finite, without a wait for the GPU where the optimizer can skip
an update itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from advreg.hf.view.inputs import SAMPLE_ID
from advreg.memory.deferred_check import LateCheck
from advreg.methods.base import Batch, StepReport

REPLAY = "the gradient is not finite in a replay; lower the learning rate or the radius"


class NonFiniteLossError(FloatingPointError):
    """The loss or its gradient became NaN or infinite."""


@dataclass
class Update:
    """An update of the weights that is being made.

    Args:
        step: the number of updates before it.
        epoch: its epoch.
        taken: its micro-batches so far.
        reports: what each step reported, with its micro-batch.
        has_nonfinite: whether a loss or a gradient of it is not finite.
    """

    step: int = 0
    epoch: int = 0
    taken: list[dict[str, Any]] = field(default_factory=list)
    reports: list[tuple[Batch, StepReport]] = field(default_factory=list)
    has_nonfinite: bool = False

    def place(self, *batches: Batch) -> str:
        """Step, epoch and sample ids, for an error."""
        found = [batch.get(SAMPLE_ID, ()) for batch in batches]
        ids = [
            number
            for each in found
            for number in (each.tolist() if isinstance(each, Tensor) else each)
        ]
        return f"step {self.step} (epoch {self.epoch}), sample ids {ids or 'unknown'}"

    def losses_are_finite(self) -> Tensor:
        """A flag, on the device."""
        losses = [report.loss for _, report in self.reports]
        return torch.stack(losses).isfinite().all() if losses else torch.tensor(True)

    def drop_nonfinite(self) -> None:
        """Mark the update as one to skip, and drop the reports whose loss is not finite."""
        self.has_nonfinite = True
        if not bool(self.losses_are_finite()):  # one wait for the device, not one for each report
            self.reports = [kept for kept in self.reports if bool(kept[1].loss.isfinite())]

    def refuse_replay(self, batch: Batch) -> None:
        """Raise the error for a gradient between two replays of a batch."""
        raise NonFiniteLossError(f"{REPLAY} ({self.place(batch)})")

    def refuse(self, norm: Tensor | float | None) -> None:
        """Raise the error for the first loss that is not finite, or for the gradient's norm."""
        for batch, report in self.reports:
            if not bool(report.loss.isfinite()):
                raise NonFiniteLossError(
                    f"the loss is {float(report.loss)} at {self.place(batch)}: task loss "
                    f"{float(report.task_loss)}, "
                    f"penalty {_number(report.penalty)}. The last checkpoint is untouched. Lower "
                    "the learning rate, "
                    "the weight or the radius, or train in bf16 or fp32"
                )
        raise NonFiniteLossError(
            f"the gradient's norm is {_number(norm)} at {self.place(*self.taken)}. Neither the "
            "weights nor the last "
            "checkpoint were changed. Lower the learning rate, the weight or the radius, or train "
            "in bf16 or fp32"
        )


class NonFiniteGuard:
    """Makes an optimizer skip updates that are not finite, and raises the error one update later.

    To read a gradient's norm, the host must wait for the GPU's whole queue, and the GPU then waits
    for the host. A fused optimizer takes a flag that stays on the GPU, ``found_inf``: where
    it is set, neither weights nor moments change. A loss scaler sets the same flag in fp16.

    Args:
        optimizer: one that :meth:`supports` accepts.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._late = LateCheck()

    @staticmethod
    def supports(optimizer: object) -> bool:
        """Whether an optimizer reads ``found_inf``. Only torch's own optimizers are trusted."""
        is_own = type(optimizer).__module__.startswith("torch.optim.")
        return is_own and bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def check(self, update: Update, norm: Tensor) -> None:
        """Let the optimizer make an update if it is finite; raise an error if the one before was
        not.
        """
        self._guard(update.losses_are_finite() & norm.isfinite(), partial(update.refuse, norm))

    def check_replay(self, update: Update, norm: Tensor) -> None:
        """The same for FreeAT's update between two replays of a batch."""
        self._guard(norm.isfinite(), partial(update.refuse_replay, update.taken[-1]))

    def _guard(self, is_finite: Tensor, raise_error: Callable[[], None]) -> None:
        self._optimizer.found_inf = (~is_finite).float()
        self._late.put(is_finite, raise_error)

    def settle(self) -> None:
        """Raise the error of the last update now, if it was not finite."""
        self._late.settle()

    def release(self) -> None:
        """Take the flag off the optimizer."""
        self._optimizer.__dict__.pop("found_inf", None)


def is_finite(update: Update, norm: Tensor | float | None) -> bool:
    """Whether losses and norm are finite; waits for the device. A norm of None is not checked."""
    return bool(update.losses_are_finite()) and (norm is None or math.isfinite(norm))


def _number(value: Tensor | float | None) -> str:
    return "none" if value is None else f"{float(value)}"
