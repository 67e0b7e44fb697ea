"""The check of each update of the weights, and its figures in the training log."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from advreg.hf.components.component import Component
from advreg.hf.guards.nonfinite import NonFiniteGuard, is_finite
from advreg.methods.base import StepReport

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class UpdateCheck(Component):
    """Stops at an update that is not finite, or skips it."""

    hooks: ClassVar[tuple[str, ...]] = ("_get_grad_norm", "_maybe_log_save_evaluate")

    guard: NonFiniteGuard | None = None

    def begin(self) -> None:
        """Let the optimizer skip updates that are not finite, if it can and the run is to stop at
        one.
        """
        trainer = self.trainer
        # without the wrapper of accelerate
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        is_sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        waits = self.attached.on_non_finite != "stop" or trainer.args.fp16 or is_sharded
        can_skip = not waits and NonFiniteGuard.supports(optimizer)
        self.guard = NonFiniteGuard(optimizer) if can_skip else None

    def release(self) -> None:
        """Take the flag off the optimizer."""
        if self.guard is not None:
            self.guard.release()

    def settle(self) -> None:
        """Raise an error now if the last update was not finite."""
        if self.guard is not None:
            self.guard.settle()

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> Any:
        """The norm of an update's gradient.

        This is the one method of the trainer that runs between the last backward pass and the
        optimizer's step, so the update is checked here.
        """
        norm = self.own._get_grad_norm(model, grad_norm)
        if self.guard is not None:
            self.guard.check(self.attached.update, norm)
        elif self.attached.on_non_finite != "ignore":
            self._require_finite(None if self.trainer.args.fp16 else norm)
        return norm

    def _require_finite(self, norm: Tensor | float | None) -> None:
        """Refuse an update that is not finite; the host waits for the answer.

        The norm is None in fp16, where the loss scaler checks it, and with DeepSpeed without ZeRO,
        which has made the update.
        """
        update = self.attached.update
        if not update.has_nonfinite and is_finite(update, norm):
            return
        if self.attached.on_non_finite == "stop":
            update.refuse(norm)
        update.drop_nonfinite()
        self.tally.skipped += 1
        # without a gradient the optimizer leaves a weight and its moments unchanged
        self.trainer.model.zero_grad()
        logger.warning(
            "loss or gradient not finite at %s; the update is skipped (%d so far)",
            update.place(*update.taken),
            self.tally.skipped,
        )

    def _maybe_log_save_evaluate(self, *args: object, **kwargs: object) -> None:
        """The trainer's own, after the check of the last update."""
        control = self.trainer.control
        if control.should_log or control.should_evaluate or control.should_save:
            self.settle()
        self.own._maybe_log_save_evaluate(*args, **kwargs)


@dataclass(eq=False)
class Logs(Component):
    """Adds what the steps reported since the last log."""

    hooks: ClassVar[tuple[str, ...]] = ("log",)

    _values: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def add(self, report: StepReport) -> None:
        """Note the report of a step. The losses of an update's micro-batches add up, as in the
        Trainer's own ``loss``.
        """
        group = self.attached.loss.group
        self._values["task_loss"].append(group * report.task_loss.detach())
        if report.penalty is not None:
            self._values["penalty"].append(group * report.penalty.detach())
        for name, value in report.measures.items():
            self._values[name].append(torch.as_tensor(value).detach())

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        """Add the means since the last log to a training log, so that every tracker shows them."""
        if "loss" in logs:
            means = [
                torch.stack([value.float().cpu() for value in values]).mean()
                for values in self._values.values()
            ]
            trainer = self.trainer
            if means and trainer.args.world_size > 1:  # as the Trainer does with its own ``loss``
                mine = torch.stack(means).to(trainer.args.device)
                means = list(trainer.accelerator.reduce(mine, "mean").cpu())
            logs.update(zip(self._values, map(float, means), strict=True))
            self._values.clear()
        self.own.log(logs, *args, **kwargs)
