"""Attention over short rows: all of a row's attention, forward or backward, in one program of a
GPU.

The kernels that PyTorch chooses are made for thousands of tokens: they compute tiles of 64 or 128
positions, of which a sentence fills a quarter, and go over the gradient in several passes. A row of
at most :data:`LONGEST` positions fits a single tile, so that nothing between queries and output is
ever written to memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LONGEST = 128
"""Positions of a row that still fit one program; longer ones are computed by matrix products."""

WIDTHS = (16, 32, 64, 128)
"""Widths of a head that the kernels take."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """softmax(scale · q kᵀ) v, head by head; a query that sees no key gets zeros.

    Args:
        q: queries, (B, T, H, D).
        k, v: keys and values, (B, S, H, D).
        mask: which key each query sees, true where it does, (B, 1, T, S); none: every one.
        causal: query t sees keys 0 to t only.
        scale: usually 1/√D.

    Returns:
        (B, T, H, D).
    """
    out, _ = torch.ops.advreg.short_attention(q, k, v, mask, causal, scale)
    return out  # type: ignore[no-any-return]


@torch.library.custom_op("advreg::short_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The output, and of each query the logarithm of what its softmax is divided by, (B, H, T)."""
    if _fits_a_kernel(q, k):
        from advreg.core.short_attention_kernels import forward

        return forward(q, k, v, mask, causal, scale)
    scores = _scores(q, k, mask, causal, scale)
    total = scores.logsumexp(-1)  # (B, H, T)
    total = total.masked_fill(total == -torch.inf, 0.0)
    weights = (scores - total[..., None]).exp().to(v.dtype)
    return torch.einsum("bhts,bshd->bthd", weights, v).contiguous(), total


@torch.library.custom_op("advreg::short_attention_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    total: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values; the softmax is made again."""
    if _fits_a_kernel(q, k):
        from advreg.core.short_attention_kernels import backward

        return backward(gradient, q, k, v, mask, total, causal, scale)
    weights = (_scores(q, k, mask, causal, scale) - total[..., None]).exp()  # (B, H, T, S)
    moved = torch.einsum("bthd,bshd->bhts", gradient, v).to(weights.dtype)
    slopes = (scale * weights * (moved - (weights * moved).sum(-1, keepdim=True))).to(q.dtype)
    return (
        torch.einsum("bhts,bshd->bthd", slopes, k).contiguous(),
        torch.einsum("bhts,bthd->bshd", slopes, q).contiguous(),
        torch.einsum("bhts,bthd->bshd", weights.to(q.dtype), gradient).contiguous(),
    )


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """(B, H, T, S), in float32 at least; minus infinity where a query does not see a key."""
    scores = scale * torch.einsum("bthd,bshd->bhts", q, k).to(
        torch.promote_types(q.dtype, torch.float32)
    )
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def _fits_a_kernel(q: Tensor, k: Tensor) -> bool:
    is_short = max(q.shape[1], k.shape[1]) <= LONGEST and q.shape[-1] in WIDTHS
    return (
        q.is_cuda and is_short and q.dtype != torch.float64
    )  # which no matrix product of Triton takes


# ---- what torch must know of the two


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    rows, queries, heads, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty((rows, heads, queries), dtype=wide)


@_backward.register_fake
def _(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    total: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
    found = torch.ops.advreg.short_attention_backward(
        gradient, *ctx.saved_tensors, ctx.causal, ctx.scale
    )
    return *found, None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)
