"""Is an update finite? Asked without making the host wait for the GPU where the optimizer can
withhold an update.
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
        step: updates before it.
        epoch: the one it belongs to.
        taken: those of its micro-batches that a step was made on.
        reports: of these steps, with their micro-batches.
        spoilt: is something of it not finite?
    """

    step: int = 0
    epoch: int = 0
    taken: list[dict[str, Any]] = field(default_factory=list)
    reports: list[tuple[Batch, StepReport]] = field(default_factory=list)
    spoilt: bool = False

    def place(self, *batches: Batch) -> str:
        """Where a user finds it, for an error."""
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

    def finite_reports(self) -> list[StepReport]:
        """Those of the steps whose loss is finite."""
        if bool(self.losses_are_finite()):  # the host waits once, not for each
            return [report for _, report in self.reports]
        return [report for _, report in self.reports if bool(report.loss.isfinite())]

    def refuse_replay(self, batch: Batch) -> None:
        """Raise what stops the run, of a gradient between two replays of a batch."""
        raise NonFiniteLossError(f"{REPLAY} ({self.place(batch)})")

    def refuse(self, norm: Tensor | float | None) -> None:
        """Raise what stops the run: of the first loss that is not finite, or of the gradient's
        norm.
        """
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


class Withholding:
    """Has an optimizer withhold the updates that are not finite, and hears of one when the next is
    due.

    To look at a gradient's norm the host must wait for all that is queued on the GPU, which then
    waits for the host. A fused optimizer takes a flag that lives on the GPU: where it is set,
    neither weights nor moments change. It is the one that a loss scaler sets in fp16.

    Args:
        optimizer: one that :meth:`is_known_to`.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._late = LateCheck()

    @staticmethod
    def is_known_to(optimizer: Any) -> bool:
        """Does a flag keep it from its update? Of others than torch's own nobody knows what they
        make of one.
        """
        is_own = type(optimizer).__module__.startswith("torch.optim.")
        return is_own and bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def put(self, update: Update, norm: Tensor) -> None:
        """Let the optimizer make an update if it is finite; complain of the one before, if that was
        not.
        """
        self._guard(update.losses_are_finite() & norm.isfinite(), partial(update.refuse, norm))

    def put_replay(self, update: Update, norm: Tensor) -> None:
        """The same for what FreeAT does between two replays of the batch at hand."""
        self._guard(norm.isfinite(), partial(update.refuse_replay, update.taken[-1]))

    def _guard(self, fine: Tensor, complain: Callable[[], None]) -> None:
        self._optimizer.found_inf = (~fine).float()
        self._late.put(fine, complain)

    def settle(self) -> None:
        """Complain of the last update now, if it was not finite."""
        self._late.settle()

    def release(self) -> None:
        """Leave the optimizer as it was."""
        self._optimizer.__dict__.pop("found_inf", None)


def is_finite(update: Update, norm: Tensor | float | None) -> bool:
    """Waits for the answer. A norm of None was not told, or is not to be looked at."""
    return bool(update.losses_are_finite()) and (norm is None or math.isfinite(norm))


def _number(value: Tensor | float | None) -> str:
    return "none" if value is None else f"{float(value)}"
