"""Where δ enters a model: forward hooks on the token embeddings, taken off again, and checked to have fired."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from advreg.core.perturbation import Perturbation

# Modules whose output is the finished embedding block in families that keep no "…Embeddings" module.
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


def find_sites(model: nn.Module, site: str = "tokens") -> dict[str, nn.Module]:
    """The module of each stream whose output, (B, T, D), δ is added to.

    Args:
        model: any Hugging Face model.
        site: ``"tokens"``, the token-embedding module; ``"block"``, the whole embedding block after its LayerNorm
            (where SMART's code adds δ); or the dotted name of any module. An encoder–decoder takes two names,
            ``"encoder=…,decoder=…"``.
    """
    core = bare(model)
    if site == "tokens":
        return _token_embeddings(core)
    if site == "block":
        return {stream: _block_around(core, module, stream) for stream, module in _token_embeddings(core).items()}
    return _named_modules(core, site)


class Injection:
    """Adds δ to the outputs of the sites during a pass.

    With ``site="tokens"`` δ is added to what the token-embedding module returns. Models that scale embeddings by √D do
    it inside that module (BART, M2M100: δ is in the scaled unit) or after it (Marian: δ is scaled with the embedding).

    The hook computes output + δ in float32 (or wider) and casts back, so that a small δ is not rounded away before
    it is added. It runs only between ``with injection.adding(delta):`` and its end.
    """

    def __init__(self, model: nn.Module, site: str = "tokens") -> None:
        self.site = site
        self.sites = find_sites(model, site)
        self.seen: dict[str, Tensor] = {}
        self._slot: Mapping[str, Tensor] = {}
        self._calls: dict[str, int] = {}
        self._checked: set[str] = set()

    @contextmanager
    def adding(self, delta: Perturbation | None) -> Iterator[None]:
        """Perturb the passes inside; there must be exactly one, and every stream must be reached once."""
        if delta is None:
            yield
            return
        with self._installed(delta.values):
            yield
        self._require_one_call_each()

    @contextmanager
    def watching(self) -> Iterator[dict[str, Tensor]]:
        """Perturb nothing; collect the output of each site in one pass."""
        with self._installed({}):
            yield self.seen
        self._require_one_call_each()

    @contextmanager
    def _installed(self, slot: Mapping[str, Tensor]) -> Iterator[None]:
        self._slot, self._calls, self.seen = slot, dict.fromkeys(self.sites, 0), {}
        handles = self._install()
        try:
            yield
        finally:
            self._slot = {}
            for handle in handles:
                handle.remove()

    def _install(self) -> list[RemovableHandle]:
        """One hook per module; where encoder and decoder share a module, its first call is the encoder's."""
        streams: dict[nn.Module, list[str]] = {}
        for stream, module in self.sites.items():
            streams.setdefault(module, []).append(stream)
        return [module.register_forward_hook(self._hook(names)) for module, names in streams.items()]

    def _hook(self, streams: list[str]) -> Any:
        def add_delta(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            stream = streams[min(sum(self._calls[name] for name in streams), len(streams) - 1)]
            self._calls[stream] += 1
            if not isinstance(output, Tensor) or output.dim() != 3:
                raise InjectionError(
                    f"site '{self.site}': {type(module).__name__} must output one tensor (B, T, D), got "
                    f"{tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__}; "
                    "choose site='tokens' or another module's name"
                )
            if not self._slot:
                self.seen[stream] = output.detach()
                return None
            if stream not in self._checked:
                self._check_resolution(output, stream)
            return add(output, self._slot[stream], stream)

        return add_delta

    def _check_resolution(self, output: Tensor, stream: str) -> None:
        """Warn, once, when δ is below the resolution of the embeddings' dtype."""
        self._checked.add(stream)
        share = surviving_share(output.detach(), self._slot[stream].detach())
        if share < SURVIVES:
            warnings.warn(
                f"only {share:.0%} of the perturbation of stream '{stream}' survives rounding to {output.dtype}; "
                "raise radius or the noise scale, or keep the weights in float32 and use autocast (bf16=True)",
                stacklevel=2,
            )

    def _require_one_call_each(self) -> None:
        for stream, calls in self._calls.items():
            if calls != 1:
                module = type(self.sites[stream]).__name__
                raise InjectionError(
                    f"the perturbation of stream '{stream}' must enter once per pass, but its module ({module}, site "
                    f"'{self.site}') was called {calls} times; choose the dotted name of a module that the forward "
                    "pass calls once, as site='name'"
                )


def add(output: Tensor, delta: Tensor, stream: str) -> Tensor:
    """output + δ, summed in the wider of the two precisions and cast back."""
    if output.shape != delta.shape:
        raise InjectionError(
            f"the perturbation of stream '{stream}' must have the embeddings' shape {tuple(output.shape)}, "
            f"got {tuple(delta.shape)}"
        )
    wide = torch.promote_types(output.dtype, delta.dtype)
    return (output.to(wide) + delta.to(wide)).to(output.dtype)


def surviving_share(output: Tensor, delta: Tensor) -> float:
    """Share of the non-zero entries of δ that still change the embedding after rounding to its dtype (1 if δ = 0)."""
    moved = delta != 0
    changed = (add(output, delta, "tokens") != output) & moved
    return float(changed.sum() / moved.sum()) if bool(moved.any()) else 1.0


def _token_embeddings(core: Any) -> dict[str, nn.Module]:
    if getattr(core.config, "is_encoder_decoder", False):
        return {
            "encoder": core.get_encoder().get_input_embeddings(),
            "decoder": core.get_decoder().get_input_embeddings(),
        }
    return {"tokens": core.get_input_embeddings()}


def _block_around(core: nn.Module, embedding: nn.Module, stream: str) -> nn.Module:
    """The embedding block: the "…Embeddings" module that holds the token embeddings, or the layer that ends it."""
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
    pairs = [part.split("=", 1) for part in site.split(",")] if "=" in site else [[streams[0], site]]
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
            f"site '{name}' is no module of {type(core).__name__}; choose tokens, block, or a name such as "
            f"{', '.join(some) or 'those of model.named_modules()'}"
        ) from None
