"""Logits in the precision they were computed in, for losses that widen what they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn

_BIAS = "final_logits_bias"  # of Marian, BART and their kin: a buffer, which no training changes


class NarrowLogits:
    """Passes in mixed precision whose logits are what the last matrix product made of them.

    Two things would copy them to float32, and their gradient back: accelerate widens all that a
    forward returns, and a bias in float32 does so when it is added, even where it is zero. Of a
    vocabulary's logits such a copy is among the largest tensors there are. The numbers are the
    same.

    Args:
        model: as accelerate prepares it, sooner or later.
        core: the same without adapters around it.
    """

    def __init__(self, model: nn.Module, core: nn.Module) -> None:
        self._model, self._core = model, core

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a pass; afterwards the model is as it was."""
        forward, bias = vars(self._model).get("forward"), self._core._buffers.get(_BIAS)
        narrow, nothing = as_computed(self._model, forward), self._nothing
        if narrow is not None:
            self._model.forward = narrow
        if nothing is not None:
            self._core._buffers[_BIAS] = nothing
        try:
            yield
        finally:
            if narrow is not None:
                self._model.forward = forward  # type: ignore[assignment]
            if nothing is not None:
                self._core._buffers[_BIAS] = bias

    @cached_property
    def _nothing(self) -> Tensor | None:
        """A zero without dimensions, which widens nothing, for a bias of zeros; the first pass
        looks at that once.
        """
        bias = self._core._buffers.get(_BIAS)
        return None if bias is None or bool(torch.any(bias)) else bias.new_zeros(())


def as_computed(model: nn.Module, forward: Any) -> Any:
    """What accelerate's forward of a model calls, before it widens what comes out; none if it does
    not.
    """
    widens = getattr(forward, "__wrapped__", None)
    if not isinstance(widens, ConvertOutputsToFp32):
        return None
    inner = widens.model_forward
    return MethodType(inner, model) if isinstance(forward, MethodType) else inner
