"""How each kind of pass calls a model: eagerly, or as the trained model is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from advreg.hf.patches.layerdrop import has_disabled_layerdrop, layers_kept
from advreg.hf.patches.logit_precision import NarrowLogits
from advreg.hf.view.injection import bare, compiled_parts, uncompiled

Context = Callable[[], AbstractContextManager[object]]
Forward = Callable[..., Any]


@dataclass(frozen=True)
class Calls:
    """The callables of each kind of pass.

    Args:
        trained: for the pass that computes the task loss: the model in DDP, compiled, or both.
        bare: for passes that synchronise nothing.
        ascent: for passes that are differentiated with respect to δ alone.
        averaged: for predictions with other weights; called with those and the inputs.
        patches: entered around every pass; what a compiled model needs.
        is_compiled: whether a part of the model, or all of it, is compiled.
        is_whole: whether the whole forward pass is one compiled function.
    """

    trained: nn.Module
    bare: nn.Module
    ascent: Forward
    averaged: Forward
    patches: tuple[Context, ...] = ()
    is_compiled: bool = False
    is_whole: bool = False

    @property
    def compiles_losses(self) -> bool:
        """Whether losses are compiled separately, because no graph of the model holds them."""
        return self.is_compiled and not self.is_whole


def calls_of(model: nn.Module, half: bool, widens: bool, trained: nn.Module) -> Calls:
    """The calls for a model that is trained eagerly, compiled in parts, or compiled as a whole.

    Args:
        model: the model, neither compiled as a whole nor wrapped.
        half: whether the model runs in float16.
        widens: whether the loss widens logits itself, so that they may stay narrow.
        trained: the model that makes the trained pass.
    """
    parts = compiled_parts(trained)
    if not parts:
        return Calls(trained, model, model, partial(call_with, model))
    patches: list[Context] = [layers_kept] if any(map(has_disabled_layerdrop, parts)) else []
    whole = next((part for part in trained.modules() if _is_compiled_in(part, model)), None)
    core = bare(model)
    if whole is not None:
        compiler: Any = whole.dynamo_ctx
        forward = whole if uncompiled(whole) is model else compiler(model)
        constant = compiler(partial(call_frozen, model))
        averaged = compiler(partial(call_with, model))
    else:  # compiled in place, or in parts
        forward = trained if uncompiled(trained) is model else model
        constant, averaged = partial(call_constant, forward), partial(call_with, model)
        if widens:
            patches.append(NarrowLogits(model, core).passing)
    ascent = partial(_call_for_ascent, core, forward, constant)
    if half:  # its gradient may be taken twice, which compiled graphs forbid
        ascent = partial(_call_eagerly, forward)
    return Calls(trained, forward, ascent, averaged, tuple(patches), True, whole is not None)


def _is_compiled_in(part: nn.Module, model: nn.Module) -> bool:
    """Whether ``torch.compile`` made this part of the whole model."""
    return "dynamo_ctx" in vars(part) and any(
        inner is model for inner in uncompiled(part).modules()
    )


# ---- passes of the ascent


def _call_eagerly(forward: Forward, **inputs: object) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return forward(**inputs)


def _call_for_ascent(
    core: PreTrainedModel, forward: Forward, constant: Forward, **inputs: object
) -> Any:
    """A pass with constant parameters, unless checkpointing would recompute it with others."""
    return (forward if core.is_gradient_checkpointing else constant)(**inputs)


def call_frozen(model: nn.Module, **inputs: object) -> Any:
    """The model's output without gradients of parameters, for a compiler to trace.

    A compiled backward pass computes all gradients of its graph, requested or not; in this graph
    there is only the gradient with respect to δ. The parameters' own flags are not touched.
    """
    constants = {name: value.detach() for name, value in model.named_parameters()}
    return call_with(model, constants, **inputs)


def call_constant(model: nn.Module, **inputs: object) -> Any:
    """:func:`call_frozen` for a model whose parts are compiled; looks up no name, which is
    faster.
    """
    with constant_parameters(model):
        return model(**inputs)


@contextmanager
def constant_parameters(model: nn.Module) -> Iterator[None]:
    """Within, a constant that shares its memory replaces each parameter in every module."""
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (module._parameters, name, value)
        for module in model.modules()
        for name, value in module._parameters.items()
        if value is not None
    ]
    constants = {value: value.detach() for _, _, value in places}
    try:
        for parameters, name, value in places:
            parameters[name] = constants[value]
        yield
    finally:
        for parameters, name, value in places:
            parameters[name] = value


def call_with(model: nn.Module, parameters: dict[str, Tensor], **inputs: object) -> Any:
    """The model's output with other values of some of its parameters."""
    return torch.func.functional_call(model, parameters, (), inputs)
