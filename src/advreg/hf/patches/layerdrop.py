"""LayerDrop that drops nothing, kept out of compiled graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_rand = torch.rand


def _rand_but_for_layers(*size: Any, **kwargs: Any) -> Any:
    return 1.0 if size == ([],) else _rand(*size, **kwargs)


@contextmanager
def layers_kept() -> Iterator[None]:
    """A model that draws whether to drop a layer, ``torch.rand([])``, finds 1: keep it.

    Marian, BART and their kin draw before each layer in training, also where none is ever dropped
    (Fan et al. 2020). ``torch.compile`` cannot follow a branch on a tensor: it would cut the graph
    at every layer, and compile each piece. The function is replaced while a pass is made, since a
    ``TorchFunctionMode`` is not asked for it by every version of torch.
    """
    torch.rand = _rand_but_for_layers
    try:
        yield
    finally:
        torch.rand = _rand


def has_disabled_layerdrop(model: nn.Module) -> bool:
    """Does the model draw whether to drop layers, and drops none?"""
    shares = [module.layerdrop for module in model.modules() if hasattr(module, "layerdrop")]
    return bool(shares) and not any(shares)
