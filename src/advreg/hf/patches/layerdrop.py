"""Keeps a disabled LayerDrop out of compiled graphs.

What: within a pass, ``torch.rand([])`` returns 1, which keeps the layer.
Why: Marian, BART and related models draw before each layer in training whether to drop it (Fan et
al. 2020), even with probability 0. ``torch.compile`` cannot follow a branch on a tensor: it would
break the graph at every layer and compile each piece.
Upstream: https://github.com/pytorch/pytorch/issues/95425 (closed).
Remove when: transformers draws only if ``layerdrop`` is above 0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from advreg.hf.replaced import replaced

_rand = torch.rand


def _rand_but_for_layers(*size: Any, **kwargs: Any) -> Any:
    return 1.0 if size == ([],) else _rand(*size, **kwargs)


def layers_kept() -> AbstractContextManager[None]:
    """Within, a model keeps each layer for which it draws.

    The function is replaced, because a ``TorchFunctionMode`` does not see this call in every
    version of torch.
    """
    return replaced(vars(torch), "rand", _rand_but_for_layers)


def has_disabled_layerdrop(model: nn.Module) -> bool:
    """Whether the model draws for its layers although all its probabilities are 0."""
    shares = [module.layerdrop for module in model.modules() if hasattr(module, "layerdrop")]
    return bool(shares) and not any(shares)
