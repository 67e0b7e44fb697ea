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
Measure = Callable[..., Tensor]

ENTRIES_AT_ONCE = 2**24
"""Logits whose divergence is computed at once; more are taken a part at a time, to save memory."""


def widen(logits: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a log-probability."""
    return logits if logits.dtype == torch.float64 else logits.float()


def kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ_k p_k (log p_k − log q_k) of two rows of logits, (..., C) → (...)."""
    return _of_rows(_kl, clean, perturbed)


def symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """½ KL(P ‖ Q) + ½ KL(Q ‖ P) = ½ Σ_k (p_k − q_k)(log p_k − log q_k), (..., C) → (...)."""
    return _of_rows(_symmetric_kl, clean, perturbed)


def _of_rows(measure: Measure, clean: Tensor, perturbed: Tensor) -> Tensor:
    rows = (logits.reshape(-1, logits.shape[-1]) for logits in (clean, perturbed))
    return in_parts(measure, *rows).view(clean.shape[:-1])


def _kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    log_p, log_q = _log_softmax(clean), _log_softmax(perturbed)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    log_p, log_q = _log_softmax(clean), _log_softmax(perturbed)
    return (0.5 * (log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def in_parts(measure: Measure, logits: Tensor, *others: Tensor) -> Tensor:
    """A number for each row of logits, (N, C) → (N,); for many rows, a part at a time.

    Autograd then keeps the arguments and no other tensor of their size.

    Args:
        measure: the numbers, given rows of each argument.
        logits: (N, C).
        others: further arguments, (N, ...).
    """
    # a compiler keeps no more than _InParts
    if torch.compiler.is_compiling() or logits.numel() <= ENTRIES_AT_ONCE:
        return measure(logits, *others)
    found: Tensor = _InParts.apply(measure, logits, *others)  # type: ignore[no-untyped-call]
    return found


class _InParts(torch.autograd.Function):
    """Left to autograd, the logits of a whole vocabulary would be held half a dozen times over in
    float32. Here each part of the rows is computed again in the backward pass, and differentiated
    on its own.
    """

    @staticmethod
    def forward(ctx: Any, measure: Measure, *rows: Tensor) -> Tensor:
        ctx.measure = measure
        ctx.save_for_backward(*rows)
        parts = zip(*(row_parts(values, rows[0]) for values in rows), strict=True)
        return torch.cat([measure(*part) for part in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        slopes = [
            torch.empty_like(values) if is_needed else None
            for values, is_needed in zip(rows, needed, strict=True)
        ]
        targets = [slope for slope in slopes if slope is not None]
        each = (row_parts(values, rows[0]) for values in (*targets, upstream, *rows))
        for parts in zip(*each, strict=True):
            above, *values = parts[len(targets) :]
            leaves = [value.detach() for value in values]
            wanted = [
                leaf.requires_grad_()
                for leaf, is_needed in zip(leaves, needed, strict=True)
                if is_needed
            ]
            with torch.enable_grad():
                found = ctx.measure(*leaves)
            gradients = torch.autograd.grad(found, wanted, above)
            for target, gradient in zip(parts, gradients, strict=False):
                target.copy_(gradient)
        return None, *slopes


def row_parts(values: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """Values of rows of logits, (N, ...), a part of the rows at a time."""
    return torch.split(values, max(1, ENTRIES_AT_ONCE // logits.shape[-1]))


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
    measure = kl if kind == "kl" else symmetric_kl
    if prediction == "labels":
        return measure(as_two_classes(clean), as_two_classes(perturbed)).sum(-1)
    return measure(clean, perturbed)
