"""The gradient with respect to δ, scaled where float16 would underflow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advreg.core.ascent import input_gradient
from advreg.core.perturbation import Perturbation
from advreg.hf.guards.capability import UnsupportedError, refusal

_FIRST_SCALE = 2.0**16

_REENTRANT = (
    "reentrant gradient checkpointing cannot be differentiated with respect to the perturbation",
    "call model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': "
    "False}), or set gradient_checkpointing_kwargs={'use_reentrant': False} in TrainingArguments",
)


class CheckpointingError(UnsupportedError, RuntimeError):
    """Reentrant gradient checkpointing cannot be differentiated with respect to δ."""


class PerturbationGradient:
    """∇_δ of an objective; the gradients of parameters stay untouched.

    Args:
        half: whether the model runs in float16. The objective is then scaled up against underflow,
            and less so once that overflows.
    """

    def __init__(self, half: bool = False) -> None:
        self._half = half
        self.scale = _FIRST_SCALE

    def __call__(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        try:
            return (
                self._scaled(objective, delta) if self._half else input_gradient(objective, delta)
            )
        except RuntimeError as error:
            if "checkpoint" in str(error).lower():
                raise CheckpointingError("; ".join(_REENTRANT)) from error
            raise

    def _scaled(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        while True:
            scaled = input_gradient(objective * self.scale, delta, retain_graph=True)
            gradient = scaled.map(lambda values, _: values / self.scale)
            if self.scale <= 1 or all(
                bool(torch.isfinite(value).all()) for value in gradient.values.values()
            ):
                return gradient
            self.scale /= 16


def require_non_reentrant(model: nn.Module) -> None:
    """Refuse reentrant gradient checkpointing before the first step."""
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            keywords = getattr(module._gradient_checkpointing_func, "keywords", {})
            if keywords.get("use_reentrant", True):  # torch's own default is reentrant
                raise CheckpointingError(str(refusal("perturbation", *_REENTRANT)))
