"""Keeps logits in the precision of the last matrix product, for losses that widen them.

What: within a pass, accelerate's conversion of outputs to float32 and a bias of zeros are skipped.
Why: both would copy the logits to float32, and their gradient back. Over a vocabulary such a copy
is among the largest tensors of a step, and the compiled losses widen what they read. The numbers
are the same.
Upstream: https://github.com/huggingface/accelerate/issues/3477 (closed without a change).
Remove when: accelerate can leave outputs in their own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from types import MethodType

import torch
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn

from advreg.hf.replaced import replaced

_BIAS = "final_logits_bias"  # a buffer of Marian, BART and related models, never trained


class NarrowLogits:
    """Passes in mixed precision whose logits are not widened.

    Args:
        model: the model that accelerate prepares, now or later.
        core: the same without adapters around it.
    """

    def __init__(self, model: nn.Module, core: nn.Module) -> None:
        self._model, self._core = model, core

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Within, logits stay narrow; afterwards the model is unchanged."""
        narrow = as_computed(self._model, vars(self._model).get("forward"))
        with ExitStack() as passing:
            if narrow is not None:
                passing.enter_context(replaced(vars(self._model), "forward", narrow))
            if self._nothing is not None:
                passing.enter_context(replaced(self._core._buffers, _BIAS, self._nothing))
            yield

    @cached_property
    def _nothing(self) -> Tensor | None:
        """A zero without dimensions, which widens nothing, in place of a bias of zeros.

        The bias is inspected in the first pass.
        """
        bias = self._core._buffers.get(_BIAS)
        return None if bias is None or bool(torch.any(bias)) else bias.new_zeros(())


def as_computed(
    model: nn.Module, forward: Callable[..., object] | None
) -> Callable[..., object] | None:
    """The method that accelerate's forward calls before it widens the outputs, or None."""
    widens = getattr(forward, "__wrapped__", None)
    if not isinstance(widens, ConvertOutputsToFp32):
        return None
    inner = widens.model_forward
    return MethodType(inner, model) if isinstance(forward, MethodType) else inner
