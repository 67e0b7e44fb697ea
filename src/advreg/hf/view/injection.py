"""Where δ enters a model: forward hooks on the token embeddings, taken off again, and checked to
have fired.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from advreg.core.perturbation import Cut, Perturbation

# Modules whose output is the finished embedding block in families that keep no "…Embeddings"
# module.
_BLOCK_ENDS = ("layernorm_embedding", "drop")


SURVIVES = 0.5  # share of the perturbation's entries below which rounding is worth a warning


class InjectionError(RuntimeError):
    """δ cannot enter the model where it was asked to."""


def bare(model: Any) -> Any:
    """The Hugging Face model inside whatever wraps it: DDP, ``torch.compile``, PEFT."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "config"):
            model = model.module
        else:
            return model


def compiled_parts(model: Any) -> list[nn.Module]:
    """The parts of a model, itself among them, that are run by ``torch.compile``."""
    return [
        part
        for part in model.modules()
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None
    ]


def is_compiled(model: Any) -> bool:
    """Is the model, or a part of it, run by ``torch.compile``?"""
    return bool(compiled_parts(model))


def uncompiled(model: Any) -> Any:
    """The module that ``torch.compile`` was given, with whatever else wraps it (DDP, PEFT)."""
    return model._orig_mod if hasattr(model, "_orig_mod") else model


def find_sites(model: nn.Module, site: str = "tokens") -> dict[str, nn.Module]:
    """The module of each stream whose output, (B, T, D), δ is added to.

    Args:
        model: any Hugging Face model.
        site: ``"tokens"``, the token-embedding module; ``"block"``, the whole embedding block after
            its LayerNorm (where SMART's code adds δ); or the dotted name of any module. An
            encoder–decoder takes two names, ``"encoder=…,decoder=…"``.
    """
    core = bare(model)
    if site == "tokens":
        return _token_embeddings(core)
    if site == "block":
        return {
            stream: _block_around(core, module, stream)
            for stream, module in _token_embeddings(core).items()
        }
    return _named_modules(core, site)


@dataclass
class _Pass:
    """The pass under way: whose it is, δ (None: nothing is added, only seen), and what the hooks
    did in it.
    """

    # a name, since torch.compile asks again for the value of a string, and not which object one is
    owner: str
    delta: dict[str, Tensor] | None
    calls: dict[str, int]
    seen: dict[str, Tensor] = field(default_factory=dict)


# Hooks find δ here and not on their injection: what a traced hook reads through its module has a
# static shape to
# torch.compile, and every new length of a batch would be compiled anew.
_under_way: _Pass | None = None
_names: set[str] = (
    set()
)  # of the injections there are; a graph holds for the next injection of the same name


def _free_name(site: str) -> str:
    name = next(
        name
        for name in map(f"injection at {site}, {{}}".format, itertools.count())
        if name not in _names
    )
    _names.add(name)
    return name


class Injection:
    """Adds δ to the outputs of the sites during a pass.

    With ``site="tokens"`` δ is added to what the token-embedding module returns. Models that scale
    embeddings by √D do it inside that module (BART, M2M100: δ is in the scaled unit) or after it
    (Marian: δ is scaled with the embedding).

    The hook computes output + δ in float32 (or wider) and casts back, so that a small δ is not
    rounded away before it is added. It is on the module only between ``with
    injection.adding(delta):`` and its end, except when the model is compiled: ``torch.compile``
    does not look for hooks again after it traced a module, so they must :meth:`stay`.
    """

    def __init__(self, model: nn.Module, site: str = "tokens") -> None:
        self.site = site
        self.sites = find_sites(model, site)
        self._name = _free_name(site)
        weakref.finalize(self, _names.discard, self._name)
        self._staying: list[RemovableHandle] = []
        self._checked: set[str] = set()

    def stay(self) -> None:
        """Keep the hooks on the modules, doing nothing outside a pass, until :meth:`leave`."""
        self._staying = self._staying or self._install()

    def leave(self) -> None:
        """Take the hooks off."""
        for handle in self._staying:
            handle.remove()
        self._staying = []

    @contextmanager
    def adding(self, delta: Perturbation | Cut | None) -> Iterator[None]:
        """Perturb the passes inside; there must be exactly one, and every stream must be reached
        once.
        """
        if delta is None:
            yield
            return
        with self._during(dict(delta.values)):
            yield

    @contextmanager
    def watching(self) -> Iterator[dict[str, Tensor]]:
        """Perturb nothing; collect the output of each site in one pass."""
        with self._during(None) as seen:
            yield seen

    @contextmanager
    def _during(self, delta: dict[str, Tensor] | None) -> Iterator[dict[str, Tensor]]:
        global _under_way
        handles = [] if self._staying else self._install()
        _under_way = current = _Pass(self._name, delta, dict.fromkeys(self.sites, 0))
        try:
            yield current.seen
        finally:
            _under_way = None
            for handle in handles:
                handle.remove()
        self._require_one_call_each(current.calls)

    def _install(self) -> list[RemovableHandle]:
        """One hook per module; where encoder and decoder share a module, its first call is the
        encoder's.
        """
        streams: dict[nn.Module, list[str]] = {}
        for stream, module in self.sites.items():
            streams.setdefault(module, []).append(stream)
        return [
            module.register_forward_hook(self._hook(names)) for module, names in streams.items()
        ]

    def _hook(self, streams: list[str]) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        def add_delta(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            current = _under_way
            if current is None or current.owner != self._name:
                return None
            stream = streams[min(sum(current.calls[name] for name in streams), len(streams) - 1)]
            current.calls[stream] += 1
            if not isinstance(output, Tensor) or output.dim() != 3:
                raise InjectionError(
                    f"site '{self.site}': {type(module).__name__} must output one tensor (B, T, "
                    "D), got "
                    f"{tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__}; "
                    "choose site='tokens' or another module's name"
                )
            if current.delta is None:
                current.seen[stream] = output.detach()
                return None
            if not torch.compiler.is_compiling():  # it looks at values, which a graph cannot
                self.check_resolution(output, current.delta[stream], stream)
            return add(output, current.delta[stream], stream)

        return add_delta

    def unchecked(self) -> bool:
        """Is the resolution of a stream still to be looked at?"""
        return len(self._checked) < len(self.sites)

    def check_resolution(self, output: Tensor, delta: Tensor, stream: str) -> None:
        """Warn, once, when δ is below the resolution of the embeddings' dtype."""
        if stream in self._checked or delta.dtype == torch.bool:
            return
        self._checked.add(stream)
        share = surviving_share(output.detach(), delta.detach())
        if share < SURVIVES:
            warnings.warn(
                f"only {share:.0%} of the perturbation of stream '{stream}' survives rounding to "
                f"{output.dtype}; "
                "raise radius or the noise scale, or keep the weights in float32 and use autocast "
                "(bf16=True)",
                stacklevel=2,
            )

    def _require_one_call_each(self, count: dict[str, int]) -> None:
        for stream, calls in count.items():
            if calls != 1:
                module = type(self.sites[stream]).__name__
                raise InjectionError(
                    f"the perturbation of stream '{stream}' must enter once per pass, but its "
                    f"module ({module}, site "
                    f"'{self.site}') was called {calls} times; "
                    f"{_STALE if self._staying and calls == 0 else _ELSEWHERE}"
                )


_ELSEWHERE = "choose the dotted name of a module that the forward pass calls once, as site='name'"
_STALE = (
    "a compiled model that ran before HFModelView was made does not see its hooks: make it before "
    "the first pass, or "
    f"call torch._dynamo.reset() after making it. Otherwise {_ELSEWHERE}"
)


def add(output: Tensor, delta: Tensor, stream: str) -> Tensor:
    """output + δ, summed in the wider of the two precisions and cast back; or 0 at the tokens that
    are cut.
    """
    if delta.dtype == torch.bool:
        return output.masked_fill(delta[..., None], 0.0)
    if output.shape != delta.shape:
        raise InjectionError(
            f"the perturbation of stream '{stream}' must have the embeddings' shape "
            f"{tuple(output.shape)}, "
            f"got {tuple(delta.shape)}"
        )
    wide = torch.promote_types(output.dtype, delta.dtype)
    return (output.to(wide) + delta.to(wide)).to(output.dtype)


def surviving_share(output: Tensor, delta: Tensor) -> float:
    """Share of the non-zero entries of δ that still change the embedding after rounding to its
    dtype (1 if δ = 0).
    """
    moved = delta != 0
    changed = (add(output, delta, "tokens") != output) & moved
    return float(changed.sum() / moved.sum()) if bool(moved.any()) else 1.0


def has_decoder(core: Any) -> bool:
    """Whether a model has a decoder. T5's token classifier has none, though its config says
    encoder–decoder.
    """
    if not getattr(core.config, "is_encoder_decoder", False):
        return False
    encoder = core.get_encoder()
    return all(part is not encoder for part in core.get_decoder().modules())


def _token_embeddings(core: Any) -> dict[str, nn.Module]:
    if has_decoder(core):
        return {
            "encoder": core.get_encoder().get_input_embeddings(),
            "decoder": core.get_decoder().get_input_embeddings(),
        }
    return {"tokens": _called_embedding(core)}


def _called_embedding(core: Any) -> nn.Module:
    """The token embedding that a pass calls: T5's encoder has one of its own beside the one that
    the model names.
    """
    named: nn.Module = core.get_input_embeddings()
    parts = list(core.get_encoder().modules()) if hasattr(core, "get_encoder") else [named]
    shape = getattr(getattr(named, "weight", None), "shape", None)
    own = [part for part in parts if isinstance(part, nn.Embedding) and part.weight.shape == shape]
    return own[0] if own and named not in parts else named


def _block_around(core: nn.Module, embedding: nn.Module, stream: str) -> nn.Module:
    """The embedding block: the "…Embeddings" module that holds the token embeddings, or the layer
    that ends it.
    """
    names = {module: name for name, module in core.named_modules()}
    parent = core.get_submodule(names[embedding].rpartition(".")[0]) if embedding in names else core
    if "Embeddings" in type(parent).__name__:
        return parent
    for end in _BLOCK_ENDS:
        if isinstance(getattr(parent, end, None), nn.Module):
            block: nn.Module = getattr(parent, end)
            return block
    raise InjectionError(
        f"site 'block': {type(parent).__name__} has no embedding block for stream '{stream}'; "
        "choose site='tokens' or a module's dotted name"
    )


def _named_modules(core: nn.Module, site: str) -> dict[str, nn.Module]:
    streams = tuple(_token_embeddings(core))
    pairs = (
        [part.split("=", 1) for part in site.split(",")] if "=" in site else [[streams[0], site]]
    )
    named = {stream.strip(): _module(core, name.strip()) for stream, name in pairs}
    if set(named) != set(streams):
        raise InjectionError(
            f"site must name a module for each of the streams {', '.join(streams)}, got '{site}'; "
            "write it as " + ",".join(f"{stream}=module.name" for stream in streams)
        )
    return {stream: named[stream] for stream in streams}


def _module(core: nn.Module, name: str) -> nn.Module:
    try:
        return core.get_submodule(name)
    except AttributeError:
        some = [other for other, _ in core.named_modules() if "embed" in other][:6]
        raise InjectionError(
            f"site '{name}' is no module of {type(core).__name__}; choose tokens, block, or a name "
            "such as "
            f"{', '.join(some) or 'those of model.named_modules()'}"
        ) from None
