"""Passes of one step, and their arithmetic cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.counting import PassCount
from advreg.hf.view.view import HFModelView
from advreg.methods.base import Backward, Batch, Passes

FORWARD, BACKWARD, TOWARDS_DELTA = 1 / 3, 2 / 3, 1 / 3
"""Arithmetic of a pass in steps of Standard: a backward makes gradients of weights and of
activations, and each of them takes what the forward takes; towards δ alone there are no gradients
of weights."""


@dataclass(frozen=True)
class Cost:
    """Passes per step, and their arithmetic in steps of Standard."""

    forward: float
    backward: float
    arithmetic: float

    def times(self, factor: float) -> Cost:
        return Cost(self.forward * factor, self.backward * factor, self.arithmetic * factor)


class MeteredTask:
    """Behaves as the view it wraps and counts its passes, and how many forwards' graphs each
    backward goes through: two, for clean and perturbed.
    """

    def __init__(self, task: HFModelView) -> None:
        self.passes = PassCount()
        self._task = task
        task.count_in(self.passes)
        self._towards_delta = 0
        self._trained_through = 0
        self._propagating = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def logits(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        return self._watched(self._task.logits(batch, delta))

    def bare_logits(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        return self._watched(self._task.bare_logits(batch, delta))

    def loss_at(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        return self._watched(self._task.loss_at(batch, delta))

    def paired_logits(
        self,
        batch: Batch,
        delta: Perturbation | Cut | None,
        fuse: bool = True,
        both_losses: bool = False,
    ) -> tuple[Tensor, Tensor]:
        clean, perturbed = self._task.paired_logits(batch, delta, fuse, both_losses)
        return self._watched(clean), self._watched(perturbed)

    def gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        self._towards_delta += 1
        return self._task.gradient(objective, delta)

    def counted(self, backward: Backward) -> Backward:
        """``backward``, counted."""

        def propagate(loss: Tensor) -> None:
            self.passes.backward += 1
            self._propagating = True
            try:
                backward(loss)
            finally:
                self._propagating = False

        return propagate

    def cost(self, steps: int) -> Cost:
        """Per step."""
        forward, backward = self.passes.forward / steps, self.passes.backward / steps
        trained, towards = self._trained_through / steps, self._towards_delta / steps
        return Cost(
            forward, backward, forward * FORWARD + trained * BACKWARD + towards * TOWARDS_DELTA
        )

    def _watched(self, result: Tensor) -> Tensor:
        if result.requires_grad:
            result.register_hook(self._arrived)  # type: ignore[no-untyped-call]
        return result

    def _arrived(self, _: Tensor) -> None:
        self._trained_through += self._propagating


def penalty_cost(passes: Passes, ascent_steps: int) -> Cost:
    """Passes of a method with a clean and a perturbed pass after ``ascent_steps`` ascents."""
    arithmetic = 2 * (FORWARD + BACKWARD) + ascent_steps * (FORWARD + TOWARDS_DELTA)
    return Cost(passes.forward, passes.backward, arithmetic)
