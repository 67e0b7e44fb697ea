"""Where δ enters a model: forward hooks on the token embeddings, which prove that they ran."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from advreg.core.perturbation import Cut, Perturbation

# Modules that end the embedding block in families without an "…Embeddings" module.
_BLOCK_ENDS = ("layernorm_embedding", "drop")

SURVIVES = 0.5  # least share of the perturbation's entries that rounding should leave


class InjectionError(RuntimeError):
    """δ cannot enter the model at this site."""


def bare(model: Any) -> Any:
    """The Hugging Face model inside its wrappers: DDP, ``torch.compile``, PEFT."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "config"):
            model = model.module
        else:
            return model


def compiled_parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model, or the model itself, that ``torch.compile`` runs."""
    return [
        part
        for part in model.modules()
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None
    ]


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` runs the model or a part of it."""
    return bool(compiled_parts(model))


def uncompiled(model: Any) -> Any:
    """The module that was given to ``torch.compile``, still wrapped by DDP or PEFT."""
    return getattr(model, "_orig_mod", model)


def find_sites(model: nn.Module, site: str = "tokens") -> dict[str, nn.Module]:
    """The module of each stream whose output, (B, T, D), δ is added to.

    Args:
        model: any Hugging Face model.
        site: ``"tokens"``, the token-embedding module; ``"block"``, the whole embedding block after
            its LayerNorm (where SMART's code adds δ); or the dotted name of any module. An
            encoder–decoder takes two names, ``"encoder=…,decoder=…"``.
    """
    core = bare(model)
    embeddings = _token_embeddings(core)
    if site == "tokens":
        return embeddings
    if site == "block":
        return {name: _block_around(core, module, name) for name, module in embeddings.items()}
    return _named_modules(core, site, list(embeddings))


@dataclass
class _Pass:
    """The current pass.

    Args:
        owner: name of the injection. torch.compile guards on the value of a string, not on the
            identity of an object.
        delta: per stream; None if outputs are only recorded.
        calls: of each stream's module.
        seen: outputs per stream.
    """

    owner: str
    delta: dict[str, Tensor] | None
    calls: dict[str, int]
    seen: dict[str, Tensor] = field(default_factory=dict)


# Global because torch.compile makes every size that a traced hook reads from its module static.
_current: _Pass | None = None
# Names in use: a graph that torch.compile has made serves the next injection with its name.
_names: set[str] = set()


def _free_name(site: str) -> str:
    names = (f"injection at {site}, {number}" for number in itertools.count())
    name = next(name for name in names if name not in _names)
    _names.add(name)
    return name


class Injection:
    """Adds δ to the outputs of the sites during a pass.

    With ``site="tokens"`` δ is added to the output of the token-embedding module. Models that scale
    embeddings by √D do so inside that module (BART, M2M100: δ has the scaled unit) or after it
    (Marian: δ is scaled with the embedding).

    The hook computes output + δ in float32 (or wider) and casts back, so that a small δ is not
    rounded away before it is added. It is installed only within ``with injection.adding(delta):``,
    except on compiled models: ``torch.compile`` ignores hooks that come after a module was traced,
    so they must :meth:`stay`.
    """

    def __init__(self, model: nn.Module, site: str = "tokens") -> None:
        self.site = site
        self.sites = find_sites(model, site)
        self._name = _free_name(site)
        weakref.finalize(self, _names.discard, self._name)
        self._staying: list[RemovableHandle] = []
        self._checked: set[str] = set()

    def stay(self) -> None:
        """Keep the hooks on the modules, idle outside a pass, until :meth:`leave`."""
        self._staying = self._staying or self._install()

    def leave(self) -> None:
        """Take the hooks off."""
        for handle in self._staying:
            handle.remove()
        self._staying = []

    def adding(self, delta: Perturbation | Cut) -> AbstractContextManager[object]:
        """Perturb the one pass within, which must call each stream's module once."""
        return self._during(dict(delta.values))

    def watching(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Perturb nothing; collect the output of each site in the one pass within."""
        return self._during(None)

    @contextmanager
    def _during(self, delta: dict[str, Tensor] | None) -> Iterator[dict[str, Tensor]]:
        global _current
        handles = [] if self._staying else self._install()
        _current = current = _Pass(self._name, delta, dict.fromkeys(self.sites, 0))
        try:
            yield current.seen
        finally:
            _current = None
            for handle in handles:
                handle.remove()
        self._require_one_call_each(current.calls)

    def _install(self) -> list[RemovableHandle]:
        """One hook per module; the first call of a module that encoder and decoder share is the
        encoder's.
        """
        streams: dict[nn.Module, list[str]] = {}
        for stream, module in self.sites.items():
            streams.setdefault(module, []).append(stream)
        return [
            module.register_forward_hook(self._hook(names)) for module, names in streams.items()
        ]

    def _hook(self, streams: list[str]) -> Callable[[nn.Module, object, object], Tensor | None]:
        def add_delta(module: nn.Module, inputs: object, output: object) -> Tensor | None:
            current = _current
            if current is None or current.owner != self._name:
                return None
            stream = streams[min(sum(current.calls[name] for name in streams), len(streams) - 1)]
            current.calls[stream] += 1
            if not isinstance(output, Tensor) or output.dim() != 3:
                found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise InjectionError(
                    f"site '{self.site}': {type(module).__name__} must output one tensor "
                    f"(B, T, D), got {found}; choose site='tokens' or another module's name"
                )
            if current.delta is None:
                current.seen[stream] = output.detach()
                return None
            if not torch.compiler.is_compiling():  # the check reads values, which a graph cannot
                self.check_resolution(output, current.delta[stream], stream)
            return add(output, current.delta[stream], stream)

        return add_delta

    def unchecked(self) -> bool:
        """Whether :meth:`check_resolution` still has a stream to check."""
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
                f"{output.dtype}; raise radius or the noise scale, or keep the weights in float32 "
                "and use autocast (bf16=True)",
                stacklevel=2,
            )

    def _require_one_call_each(self, count: dict[str, int]) -> None:
        for stream, calls in count.items():
            if calls != 1:
                module = type(self.sites[stream]).__name__
                raise InjectionError(
                    f"the perturbation of stream '{stream}' must enter once per pass, but its "
                    f"module ({module}, site '{self.site}') was called {calls} times; "
                    f"{_STALE if self._staying and calls == 0 else _ELSEWHERE}"
                )


_ELSEWHERE = "choose the dotted name of a module that the forward pass calls once, as site='name'"
_STALE = (
    "a compiled model that ran before HFModelView was made ignores its hooks: make it before "
    f"the first pass, or call torch._dynamo.reset() after making it. Otherwise {_ELSEWHERE}"
)


def add(output: Tensor, delta: Tensor, stream: str) -> Tensor:
    """output + δ, summed in the wider of the two precisions and cast back; or 0 at cut tokens."""
    if delta.dtype == torch.bool:
        return output.masked_fill(delta[..., None], 0.0)
    if output.shape != delta.shape:
        raise InjectionError(
            f"the perturbation of stream '{stream}' must have the embeddings' shape "
            f"{tuple(output.shape)}, got {tuple(delta.shape)}"
        )
    wide = torch.promote_types(output.dtype, delta.dtype)
    return (output.to(wide) + delta.to(wide)).to(output.dtype)


def surviving_share(output: Tensor, delta: Tensor) -> float:
    """Share of the non-zero entries of δ that change the embedding after rounding to its dtype.

    It is 1 for δ = 0.
    """
    moved = delta != 0
    changed = (add(output, delta, "tokens") != output) & moved
    return float(changed.sum() / moved.sum()) if bool(moved.any()) else 1.0


def has_decoder(core: Any) -> bool:
    """Whether a model has a decoder; T5's token classifier has none, unlike its config."""
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
    """The token embedding that a pass calls; T5's encoder calls its copy of the one it names."""
    named: nn.Module = core.get_input_embeddings()
    parts = list(core.get_encoder().modules()) if hasattr(core, "get_encoder") else [named]
    shape = getattr(getattr(named, "weight", None), "shape", None)
    own = [part for part in parts if isinstance(part, nn.Embedding) and part.weight.shape == shape]
    return own[0] if own and named not in parts else named


def _block_around(core: nn.Module, embedding: nn.Module, stream: str) -> nn.Module:
    """The "…Embeddings" module around the token embeddings, or the layer that ends the block."""
    names = {module: name for name, module in core.named_modules()}
    parent = core.get_submodule(names[embedding].rpartition(".")[0]) if embedding in names else core
    if "Embeddings" in type(parent).__name__:
        return parent
    for end in _BLOCK_ENDS:
        block = getattr(parent, end, None)
        if isinstance(block, nn.Module):
            return block
    raise InjectionError(
        f"site 'block': {type(parent).__name__} has no embedding block for stream '{stream}'; "
        "choose site='tokens' or a module's dotted name"
    )


def _named_modules(core: nn.Module, site: str, streams: list[str]) -> dict[str, nn.Module]:
    parts = site.split(",") if "=" in site else [f"{streams[0]}={site}"]
    pairs = [part.split("=", 1) for part in parts]
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
            f"such as {', '.join(some) or 'the ones in model.named_modules()'}"
        ) from None
