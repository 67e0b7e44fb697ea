"""LayerDrop that drops nothing, kept out of compiled graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class AllLayers(TorchFunctionMode):
    """Answers a model that draws whether to drop a layer, ``torch.rand([])``, with 1: keep it.

    Marian, BART and their kin draw before each layer in training, also where none is ever dropped (Fan et al. 2020).
    ``torch.compile`` cannot follow a branch on a tensor: it would cut the graph at every layer, and compile each piece.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.rand and args == ([],):
            return 1.0
        return function(*args, **(kwargs or {}))


def all_layers(model: nn.Module) -> AbstractContextManager[Any]:
    """A pass of the model without such draws, where LayerDrop is off; else a pass as it is."""
    shares = [module.layerdrop for module in model.modules() if hasattr(module, "layerdrop")]
    return AllLayers() if shares and not any(shares) else nullcontext()
