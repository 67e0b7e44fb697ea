"""Logits in the precision they were computed in, for losses that widen what they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn

_BIAS = "final_logits_bias"  # of Marian, BART and their kin: a buffer, which no training changes


class NarrowLogits:
    """Passes in mixed precision whose logits are what the last matrix product made of them.

    Two things would copy them to float32, and their gradient back: accelerate widens all that a forward returns, and a
    bias in float32 does so when it is added, even where it is zero. Of a vocabulary's logits such a copy is among the
    largest tensors there are. The numbers are the same.

    Args:
        model: as accelerate prepares it, sooner or later.
        core: the same without adapters around it.
    """

    def __init__(self, model: nn.Module, core: nn.Module) -> None:
        self._model, self._core = model, core
        self._nothing: Tensor | None = None
        self._knows = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a pass; afterwards the model is as it was."""
        widening = vars(self._model).get("forward")
        narrow = as_computed(self._model, widening)
        nothing = self._instead_of_bias()
        bias = self._core._buffers.get(_BIAS)
        if narrow is not None:
            self._model.forward = narrow
        if nothing is not None:
            self._core._buffers[_BIAS] = nothing
        try:
            yield
        finally:
            if narrow is not None:
                self._model.forward = widening  # type: ignore[assignment]
            if nothing is not None:
                self._core._buffers[_BIAS] = bias

    def _instead_of_bias(self) -> Tensor | None:
        """A zero without dimensions, which widens nothing, for a bias of zeros; looked at once, by the first pass."""
        if not self._knows:
            bias = self._core._buffers.get(_BIAS)
            if bias is not None and not bool(torch.any(bias)):
                self._nothing = bias.new_zeros(())
            self._knows = True
        return self._nothing


def as_computed(model: nn.Module, forward: Any) -> Any:
    """What accelerate's forward of a model calls, before it widens what comes out; none if it does not."""
    widens = getattr(forward, "__wrapped__", None)
    if not isinstance(widens, ConvertOutputsToFp32):
        return None
    inner = widens.model_forward
    return MethodType(inner, model) if isinstance(forward, MethodType) else inner
