"""How far a prediction moved: one number per predicted item, always in log space and at least float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Divergence = Literal["kl", "symmetric_kl"]
Prediction = Literal["classes", "labels", "value"]


def widen(logits: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a log-probability."""
    return logits if logits.dtype == torch.float64 else logits.float()


def kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ_k p_k (log p_k − log q_k) of two rows of logits, (..., C) → (...)."""
    log_p = F.log_softmax(widen(clean), dim=-1)
    log_q = F.log_softmax(widen(perturbed), dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """½ KL(P ‖ Q) + ½ KL(Q ‖ P) = ½ Σ_k (p_k − q_k)(log p_k − log q_k), (..., C) → (...)."""
    log_p = F.log_softmax(widen(clean), dim=-1)
    log_q = F.log_softmax(widen(perturbed), dim=-1)
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def squared_error(clean: Tensor, perturbed: Tensor) -> Tensor:
    """(f(x) − f(x+δ))² summed over the outputs of a regression, (..., C) → (...)."""
    if clean.shape != perturbed.shape:
        raise ValueError(f"predictions must have equal shapes, got {tuple(clean.shape)} and {tuple(perturbed.shape)}")
    return (widen(clean) - widen(perturbed)).square().sum(-1)


def as_two_classes(logits: Tensor) -> Tensor:
    """Independent yes/no labels as two-class rows: (..., C) → (..., C, 2), whose softmax is the sigmoid."""
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)


def divergence(
    clean: Tensor, perturbed: Tensor, kind: Divergence, prediction: Prediction, detach_clean: bool = False
) -> Tensor:
    """The regulariser ℓ_v of each item, for any kind of prediction.

    Args:
        clean: f(x), (..., C).
        perturbed: f(x + δ), (..., C).
        kind: ``"kl"`` is KL(f(x) ‖ f(x+δ)), ``"symmetric_kl"`` the mean of both directions.
        prediction: ``"classes"`` (softmax), ``"labels"`` (independent sigmoids), ``"value"`` (regression, where the
            divergence is the squared error whatever ``kind`` says).
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
