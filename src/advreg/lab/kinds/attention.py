"""Attention over batches of many shapes, and over short rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from advreg.core.short_attention import attend

_SHORT = "advreg_short"  # among the implementations of attention that transformers knows


@contextmanager
def for_any_shape() -> Iterator[None]:
    """Attention without cuDNN's kernel; also a decorator.

    On Hopper and Blackwell GPUs PyTorch prefers that kernel, which makes a plan for every new shape
    of a batch. With padded batches of text nearly every batch of the first epoch waits for plans,
    and so does every step of a beam
    search: on an H200 (torch 2.11) the first batches of a translation model took 0.22 s each, later
    ones, of shapes seen before, 0.04 s. The other kernels need no plan.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@contextmanager
def short_attention(model: Any) -> Iterator[None]:
    """Inside, a model in training attends by :func:`advreg.core.short_attention.attend`; in
    evaluation as it did.

    Args:
        model: one whose attention transformers may replace, without dropout of attention.
    """
    dropout = getattr(model.config, "attention_dropout", 0.0)
    if dropout:
        raise ValueError(
            f"short_attention must be off for a model with an attention_dropout of {dropout}: its "
            "kernels drop "
            "nothing; set that to 0, or leave short_attention out"
        )
    if not getattr(model, "_supports_sdpa", False):
        raise ValueError(
            f"short_attention must be off for {type(model).__name__}, whose attention cannot be "
            "replaced"
        )
    if torch.cuda.is_available() and find_spec("triton") is None:
        raise ValueError(
            "short_attention must be off without Triton, whose kernels it has; pip install triton"
        )
    AttentionInterface.register(_SHORT, _attend)
    AttentionMaskInterface.register(_SHORT, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_SHORT)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls: (B, H, T, D) of queries, (B, H, S, D) of keys and values → (B, T, H,
    D).
    """
    if not module.training:
        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            is_causal=is_causal,
            **kwargs,
        )
        return found
    looks_back = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    return attend(q, k, v, attention_mask, attention_mask is None and looks_back, scale), None
