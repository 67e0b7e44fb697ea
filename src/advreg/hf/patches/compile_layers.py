"""``torch.compile`` for the layers of a model, each kind of which is compiled once, and for losses
of its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

_GRAPHS = 64  # of one function; each kind of layer, pass and mask has its own


def compile_layers(model: nn.Module, **options: Any) -> None:
    """Compile the layers of a model in place, by ``torch.compile``, for batches of any shape.

    Layers that are alike share their graphs, however many there are. What lies around them, such as
    the embeddings, where δ is added, and the head, stays as it was. Names of parameters do not
    change, so that checkpoints do not either.

    Args:
        model: any model with stacks of layers, before its ``Trainer`` is made.
        options: of ``torch.compile``.
    """
    layers = list(layers_of(model))
    if not layers:
        raise ValueError(
            f"compile_layers must be off for {type(model).__name__}, which has no stack of like "
            "layers; "
            "torch_compile=True compiles any model as a whole"
        )
    allow_many_graphs()
    for layer in layers:
        layer.compile(**{"dynamic": True, **options})


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of all stacks: lists of modules of one class, which have parts themselves; not
    what is inside them.
    """
    parts = list(module.children())
    is_stack = isinstance(module, nn.ModuleList) and len({type(part) for part in parts}) == 1
    for part in parts:
        if is_stack and any(True for _ in part.children()):
            yield part
        else:
            yield from layers_of(part)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors under ``torch.compile``, whoever calls it: there is one of each."""
    allow_many_graphs()
    return torch.compile(function)


def allow_many_graphs() -> None:
    """Let a function have a graph for each kind of pass; torch would give up after a few."""
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _GRAPHS)


@contextmanager
def not_compiled() -> Iterator[None]:
    """Nothing that is called here is compiled, or run as a graph: beam search, and what is called
    once.
    """
    with torch.compiler.set_stance("force_eager"):
        yield
