"""The kernels of :mod:`advreg.core.short_attention`, in Triton: one program for each row and
head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_VARIES = [
    "mask_b",
    "mask_t",
    "mask_s",
    "T",
    "S",
]  # from batch to batch: a kernel serves all lengths of its tiles

# Positions are counted in ``t`` (queries) and ``s`` (keys), a head's entries in ``d``. Tiles are
# padded to a power of
# two: beyond the row queries and keys are read as zeros, keys are seen by nobody, and nothing is
# stored.


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The output, (B, T, H, D), and the logarithm of each query's total, (B, H, T)."""
    rows, queries, heads, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    total = torch.empty(rows, heads, queries, dtype=torch.float32, device=q.device)
    _forward_kernel[(rows * heads,)](
        _dense(q), _dense(k), _dense(v), _seen(q, mask), out, total, scale, *_strides(q, k, v, mask),
        **_sizes(q, k, mask, causal),
    )  # fmt: skip
    return out, total


def backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    total: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    rows, _, heads, _ = q.shape
    q_gradient, k_gradient, v_gradient = (
        torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v)
    )
    _backward_kernel[(rows * heads,)](
        _dense(q), _dense(k), _dense(v), _seen(q, mask), gradient.contiguous(), total, q_gradient,
        k_gradient, v_gradient, scale, *_strides(q, k, v, mask), **_sizes(q, k, mask, causal),
    )  # fmt: skip
    return q_gradient, k_gradient, v_gradient


def _dense(tensor: Tensor) -> Tensor:
    """Entries of a head must lie side by side."""
    if tensor.stride(-1) != 1:
        raise ValueError(
            f"entries of a head must lie side by side, got a stride of {tensor.stride(-1)}"
        )
    return tensor


def _seen(q: Tensor, mask: Tensor | None) -> Tensor:
    return q if mask is None else mask.view(torch.int8)  # without a mask nothing of it is read


def _strides(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """Of rows, positions and heads of each; of rows, queries and keys of the mask."""
    mask_strides = (0, 0, 0) if mask is None else (mask.stride(0), mask.stride(2), mask.stride(3))
    return (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *mask_strides)


def _sizes(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> dict[str, object]:
    queries, keys = q.shape[1], k.shape[1]
    tiles = {"TILE_T": _tile(queries), "TILE_S": _tile(keys)}
    return {
        "T": queries, "S": keys, "H": q.shape[2], "D": q.shape[3], **tiles, "MASKED": mask is not None,
        "CAUSAL": causal, "EXACT": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": {128: 8, 64: 4}.get(max(tiles.values()), 2),
    }  # fmt: skip


def _tile(length: int) -> int:
    """A power of two; matrix products take 16 at least."""
    return max(16, 1 << (length - 1).bit_length())


@triton.jit
def _tile_of(
    start, row, head, stride_b, stride_t, stride_h, length, TILE: tl.constexpr, D: tl.constexpr
):
    """A row's positions of one head, (TILE, D)."""
    t, d = tl.arange(0, TILE), tl.arange(0, D)
    at = start + row * stride_b + head * stride_h + t[:, None] * stride_t + d[None, :]
    return tl.load(at, mask=t[:, None] < length, other=0.0)


@triton.jit
def _put(start, values, row, head, length, H, TILE: tl.constexpr, D: tl.constexpr):
    """Store a row's positions of one head, (TILE, D), into a dense (B, T, H, D)."""
    t, d = tl.arange(0, TILE), tl.arange(0, D)
    at = start + ((row * length + t[:, None]) * H + head) * D + d[None, :]
    tl.store(at, values.to(start.dtype.element_ty), mask=t[:, None] < length)


@triton.jit
def _scores_of(
    queries, keys, mask, row, scale, mask_b, mask_t, mask_s, T, S, TILE_T: tl.constexpr, TILE_S: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """scale · q kᵀ, (TILE_T, TILE_S); minus infinity where a query does not see a key."""
    t, s = tl.arange(0, TILE_T)[:, None], tl.arange(0, TILE_S)[None, :]
    seen = (s < S) & (t >= 0)
    if CAUSAL:
        seen = seen & (s <= t)
    if MASKED:
        seen = seen & (
            tl.load(mask + row * mask_b + t * mask_t + s * mask_s, mask=(t < T) & (s < S), other=0)
            != 0
        )
    return tl.where(
        seen, scale * tl.dot(queries, tl.trans(keys), input_precision=EXACT), -float("inf")
    )


@triton.jit(do_not_specialize=_VARIES)
def _forward_kernel(
    q, k, v, mask, out, total, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, mask_b, mask_t, mask_s, T, S, H,
    D: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64) // H, tl.program_id(0).to(tl.int64) % H
    queries = _tile_of(q, row, head, q_b, q_t, q_h, T, TILE_T, D)
    keys = _tile_of(k, row, head, k_b, k_t, k_h, S, TILE_S, D)
    values = _tile_of(v, row, head, v_b, v_t, v_h, S, TILE_S, D)
    scores = _scores_of(
        queries,
        keys,
        mask,
        row,
        scale,
        mask_b,
        mask_t,
        mask_s,
        T,
        S,
        TILE_T,
        TILE_S,
        MASKED,
        CAUSAL,
        EXACT,
    )
    top = tl.max(scores, 1)
    top = tl.where(top == -float("inf"), 0.0, top)  # a query that sees nothing
    weights = tl.exp(scores - top[:, None])
    whole = tl.sum(weights, 1)
    whole = tl.where(whole == 0.0, 1.0, whole)
    found = tl.dot(weights.to(values.dtype), values, input_precision=EXACT) / whole[:, None]
    _put(out, found, row, head, T, H, TILE_T, D)
    t = tl.arange(0, TILE_T)
    tl.store(total + (row * H + head) * T + t, top + tl.log(whole), mask=t < T)


@triton.jit(do_not_specialize=_VARIES)
def _backward_kernel(
    q, k, v, mask, gradient, total, q_gradient, k_gradient, v_gradient, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, mask_b, mask_t, mask_s, T, S, H,
    D: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64) // H, tl.program_id(0).to(tl.int64) % H
    queries = _tile_of(q, row, head, q_b, q_t, q_h, T, TILE_T, D)
    keys = _tile_of(k, row, head, k_b, k_t, k_h, S, TILE_S, D)
    values = _tile_of(v, row, head, v_b, v_t, v_h, S, TILE_S, D)
    upstream = _tile_of(gradient, row, head, T * H * D, H * D, D, T, TILE_T, D)
    scores = _scores_of(
        queries,
        keys,
        mask,
        row,
        scale,
        mask_b,
        mask_t,
        mask_s,
        T,
        S,
        TILE_T,
        TILE_S,
        MASKED,
        CAUSAL,
        EXACT,
    )
    t = tl.arange(0, TILE_T)
    weights = tl.exp(
        scores - tl.load(total + (row * H + head) * T + t, mask=t < T, other=0.0)[:, None]
    )
    moved = tl.dot(upstream, tl.trans(values), input_precision=EXACT)
    slopes = scale * weights * (moved - tl.sum(weights * moved, 1)[:, None])
    slopes, weights = slopes.to(queries.dtype), weights.to(queries.dtype)
    _put(q_gradient, tl.dot(slopes, keys, input_precision=EXACT), row, head, T, H, TILE_T, D)
    _put(
        k_gradient,
        tl.dot(tl.trans(slopes), queries, input_precision=EXACT),
        row,
        head,
        S,
        H,
        TILE_S,
        D,
    )
    _put(
        v_gradient,
        tl.dot(tl.trans(weights), upstream, input_precision=EXACT),
        row,
        head,
        S,
        H,
        TILE_S,
        D,
    )
