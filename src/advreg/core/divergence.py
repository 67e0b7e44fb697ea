"""How far a prediction moved: one number per predicted item, always in log space and at least
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Divergence = Literal["kl", "symmetric_kl"]
Prediction = Literal["classes", "labels", "value"]
_Slope = Callable[[Tensor, Tensor, Tensor], Tensor]

ENTRIES_AT_ONCE = 2**24
"""Logits whose divergence is computed at once; more are taken a part at a time, to save memory."""


def widen(logits: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a log-probability."""
    return logits if logits.dtype == torch.float64 else logits.float()


def kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ_k p_k (log p_k − log q_k) of two rows of logits, (..., C) → (...)."""
    return _of_rows(clean, perturbed, symmetric=False)


def symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """½ KL(P ‖ Q) + ½ KL(Q ‖ P) = ½ Σ_k (p_k − q_k)(log p_k − log q_k), (..., C) → (...)."""
    return _of_rows(clean, perturbed, symmetric=True)


def _of_rows(clean: Tensor, perturbed: Tensor, symmetric: bool) -> Tensor:
    if (
        torch.compiler.is_compiling() or clean.numel() <= ENTRIES_AT_ONCE
    ):  # a compiler keeps no more than _ManyRows
        return _measure(clean, perturbed, symmetric)
    rows = clean.flatten(0, -2), perturbed.flatten(0, -2)
    found: Tensor = _ManyRows.apply(*rows, symmetric)  # type: ignore[no-untyped-call]
    return found.view(clean.shape[:-1])


def _measure(clean: Tensor, perturbed: Tensor, symmetric: bool) -> Tensor:
    log_p, log_q = _log_softmax(clean), _log_softmax(perturbed)
    weights = 0.5 * (log_p.exp() - log_q.exp()) if symmetric else log_p.exp()
    return (weights * (log_p - log_q)).sum(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class _ManyRows(torch.autograd.Function):
    """The divergence of many rows, (N, C) → (N,), which keeps no tensor of their size but the
    logits.

    Left to autograd, the logits of a whole vocabulary would be held half a dozen times over in
    float32. Here log P and log Q are made again for the backward pass, a part of the rows at a
    time. With a = log P and b = log Q:

        ∂KL(P‖Q)/∂clean = p (a − b − KL(P‖Q)),   ∂KL(P‖Q)/∂perturbed = q − p.
    """

    @staticmethod
    def forward(ctx: Any, clean: Tensor, perturbed: Tensor, symmetric: bool) -> Tensor:
        ctx.save_for_backward(clean, perturbed)
        ctx.symmetric = symmetric
        return torch.cat(
            [
                _measure(p, q, symmetric)
                for p, q in zip(row_parts(clean), row_parts(perturbed), strict=True)
            ]
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        clean, perturbed = ctx.saved_tensors
        slopes = _SYMMETRIC_SLOPES if ctx.symmetric else _SLOPES
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad[:2], strict=True)
        found = [torch.empty_like(logits) if is_wanted else None for logits, is_wanted in wanted]
        rows = _rows_at_once(clean)
        for first in range(0, len(clean), rows):
            part = slice(first, first + rows)
            log_p, log_q = _log_softmax(clean[part]), _log_softmax(perturbed[part])
            p, q, apart = log_p.exp(), log_q.exp(), log_p - log_q
            for target, slope in zip(found, slopes, strict=True):
                if target is not None:
                    target[part] = slope(p, q, apart) * upstream[part, None]
        return found[0], found[1], None


def _centred(p: Tensor, apart: Tensor) -> Tensor:
    """p (apart − Σ_k p_k apart_k)."""
    return p * (apart - (p * apart).sum(-1, keepdim=True))


# By the clean logits, and by the perturbed ones
_SLOPES: tuple[_Slope, _Slope] = (lambda p, q, apart: _centred(p, apart), lambda p, q, apart: q - p)
_SYMMETRIC_SLOPES: tuple[_Slope, _Slope] = (
    lambda p, q, apart: 0.5 * (p - q + _centred(p, apart)),
    lambda p, q, apart: 0.5 * (q - p - _centred(q, apart)),
)


def _rows_at_once(logits: Tensor) -> int:
    return max(1, ENTRIES_AT_ONCE // logits.shape[-1])


def row_parts(values: Tensor, logits: Tensor | None = None) -> tuple[Tensor, ...]:
    """Values of rows of logits, by default the logits themselves, a part of the rows at a time."""
    return torch.split(values, _rows_at_once(values if logits is None else logits))


def squared_error(clean: Tensor, perturbed: Tensor) -> Tensor:
    """(f(x) − f(x+δ))² summed over the outputs of a regression, (..., C) → (...)."""
    if clean.shape != perturbed.shape:
        raise ValueError(
            f"predictions must have equal shapes, got {tuple(clean.shape)} and "
            f"{tuple(perturbed.shape)}"
        )
    return (widen(clean) - widen(perturbed)).square().sum(-1)


def as_two_classes(logits: Tensor) -> Tensor:
    """Independent yes/no labels as two-class rows: (..., C) → (..., C, 2), whose softmax is the
    sigmoid.
    """
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)


def divergence(
    clean: Tensor,
    perturbed: Tensor,
    kind: Divergence,
    prediction: Prediction,
    detach_clean: bool = False,
) -> Tensor:
    """The regulariser ℓ_v of each item, for any kind of prediction.

    Args:
        clean: f(x), (..., C).
        perturbed: f(x + δ), (..., C).
        kind: ``"kl"`` is KL(f(x) ‖ f(x+δ)), ``"symmetric_kl"`` the mean of both directions.
        prediction: ``"classes"`` (softmax), ``"labels"`` (independent sigmoids), ``"value"``
            (regression: the squared error for any ``kind``).
        detach_clean: let no gradient flow through f(x).
    """
    if detach_clean:
        clean = clean.detach()  # the clean prediction is then the target, not a player
    if prediction == "value":
        return squared_error(clean, perturbed)
    measure: Callable[[Tensor, Tensor], Tensor] = kl if kind == "kl" else symmetric_kl
    if prediction == "labels":
        return measure(as_two_classes(clean), as_two_classes(perturbed)).sum(-1)
    return measure(clean, perturbed)
