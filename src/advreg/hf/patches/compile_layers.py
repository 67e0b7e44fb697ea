"""Compiles the layers of a model in place, and losses of its logits.

What: ``torch.compile`` for each layer of a stack; like layers share their graphs.
Why: accelerate's ``compile_regions`` compiles a copy of the model, in which parameters have other
names and which runs the uncompiled layers in mixed precision, before the second change below.
Upstream: https://github.com/huggingface/accelerate/pull/3597 (in place; closed) and
https://github.com/huggingface/accelerate/pull/4188 (merged).
Remove when: accelerate's regional compilation works in place and for batches of any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

_GRAPHS = 64  # per function: each kind of layer, pass and mask has its own


def compile_layers(model: nn.Module, **options: Any) -> None:
    """Compile the layers of a model in place, by ``torch.compile``, for batches of any shape.

    Like layers share their graphs, however many there are. The rest of the model, such as the
    embeddings, where δ is added, and the head, stays eager. Names of parameters do not change, so
    checkpoints do not either.

    Args:
        model: any model with stacks of layers, before its ``Trainer`` is made.
        options: passed to ``torch.compile``.
    """
    layers = list(layers_of(model))
    if not layers:
        raise ValueError(
            f"compile_layers must be off for {type(model).__name__}, which has no stack of like "
            "layers; torch_compile=True compiles any model as a whole"
        )
    allow_many_graphs()
    for layer in layers:
        layer.compile(**{"dynamic": True, **options})


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of all stacks, which are lists of modules of one class with parts; outermost
    stacks only.
    """
    parts = list(module.children())
    is_stack = isinstance(module, nn.ModuleList) and len({type(part) for part in parts}) == 1
    for part in parts:
        if is_stack and any(True for _ in part.children()):
            yield part
        else:
            yield from layers_of(part)


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The one compiled version of a function of tensors."""
    allow_many_graphs()
    return torch.compile(function)


def allow_many_graphs() -> None:
    """Let a function have a graph for each kind of pass; torch would stop after a few."""
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _GRAPHS)
