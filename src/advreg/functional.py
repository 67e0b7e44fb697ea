"""Each penalty as a function: of logits, or of a model and a batch.

They are the penalties of the methods, before their weight λ and divided by the number of predicted
items. Add one to your own loss where neither a Trainer nor a session fits. Penalties of a model
and a batch make passes of their own; :func:`advreg.prepare` makes fewer.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from advreg.core.divergence import Prediction, divergence, kl
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Clock
from advreg.core.sketch import Kind, log_of, sketch_for
from advreg.hf.view.head import IGNORED, counted
from advreg.hf.view.view import HFModelView
from advreg.methods import R3F, Arch, SimCut, Smart
from advreg.methods.base import Batch, ModelView, Step
from advreg.methods.regulariser import CleanPass, Regulariser, dropout_of

__all__ = [
    "arch_penalty",
    "ols_penalty",
    "r3f_penalty",
    "rdrop_penalty",
    "simcut_penalty",
    "smart_penalty",
    "temporal_penalty",
]

_NOW = Step(Clock(0, 0, planned=1))


# ---- of logits


def rdrop_penalty(
    first: Tensor,
    second: Tensor,
    labels: Tensor | None = None,
    prediction: Prediction = "classes",
) -> Tensor:
    """½ [KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)] of two predictions; see :class:`advreg.RDrop`.

    Args:
        first, second: logits of two passes with different dropout masks, (B, C) or (B, T, C).
        labels: the label of each row of logits; rows labelled −100 are left out.
        prediction: ``"classes"``, ``"labels"`` (several at once) or ``"value"`` (regression, where
            the penalty is the squared difference).

    Example:
        >>> p, q = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> round(float(rdrop_penalty(p, q)), 4), float(rdrop_penalty(p, p))
        (0.3808, 0.0)
    """
    return _mean(divergence(first, second, "symmetric_kl", prediction), labels)


def temporal_penalty(
    logits: Tensor,
    earlier: Tensor,
    labels: Tensor | None = None,
    prediction: Prediction = "classes",
    sketch: Kind = "auto",
    top: int = 8,
    draws: int = 4,
) -> Tensor:
    """KL(q ‖ p) of a prediction from an earlier one, a constant; see :class:`advreg.Temporal`.

    Args:
        logits: the prediction, (B, C) or (B, T, C).
        earlier: logits of the earlier prediction.
        labels, prediction: as for :func:`rdrop_penalty`.
        sketch, top, draws: the form in which the earlier prediction is kept; see
            :class:`advreg.Temporal`.

    Example:
        >>> p, q = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> round(float(temporal_penalty(p, q)), 4)
        0.4338
    """
    form = sketch_for(sketch, prediction, logits.shape[-1], top, draws)
    rows, kept = logits.flatten(0, -2), earlier.detach().flatten(0, -2)
    drawn = torch.rand(len(kept), form.draws, device=kept.device)
    moved = form.divergence(form.encode(kept, drawn), rows).view(logits.shape[:-1])
    return _mean(moved, labels)


def ols_penalty(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """KL(s_y ‖ p) of predictions from the targets of their classes; see :class:`advreg.OLS`.

    Args:
        logits: predictions, (B, C) or (B, T, C).
        labels: the class y of each; rows labelled −100 are left out.
        targets: s, a distribution for each class, (C, C).

    Example:
        >>> logits, targets = torch.tensor([[2.0, 0.0]]), torch.full((2, 2), 0.5)
        >>> round(float(ols_penalty(logits, torch.tensor([0]), targets)), 4)
        0.4338
    """
    wanted = targets[labels.masked_fill(labels == IGNORED, 0)]
    return _mean(kl(log_of(wanted), logits), labels)


def _mean(moved: Tensor, labels: Tensor | None) -> Tensor:
    """The mean over the predicted items."""
    if labels is None or labels.is_floating_point():
        return moved.mean()
    return moved.masked_fill(labels == IGNORED, 0.0).sum() / counted(labels)


# ---- of a model and a batch


def r3f_penalty(model: nn.Module | HFModelView, batch: Batch, **options: Any) -> Tensor:
    """ℓ_v under random noise in the embeddings; see :class:`advreg.R3F`.

    Args:
        model: the model, or a view of it, which is faster in a loop: it looks at the model once.
        batch: its inputs, with ``labels``.
        options: the options of :class:`advreg.R3F`.

    Example:
        >>> penalty = r3f_penalty(model, batch, noise_scale=0.1)
        >>> loss = model(**batch).loss + penalty
        >>> loss.backward()
    """
    return _penalty(R3F(**options), model, batch)


def smart_penalty(model: nn.Module | HFModelView, batch: Batch, **options: Any) -> Tensor:
    """max_{‖δ‖ ≤ ε} ℓ_v(x, δ, θ) by gradient ascent; see :class:`advreg.Smart`.

    Args:
        model, batch: as for :func:`r3f_penalty`.
        options: the options of :class:`advreg.Smart`.

    Example:
        >>> penalty = smart_penalty(model, batch, radius=0.3, ascent_steps=1)
        >>> bool(penalty > 0)
        True
    """
    return _penalty(Smart(**options), model, batch)


def simcut_penalty(model: nn.Module | HFModelView, batch: Batch, **options: Any) -> Tensor:
    """KL(f(x) ‖ f(cut x)), with embeddings of random tokens set to 0; see :class:`advreg.SimCut`.

    Args:
        model, batch: as for :func:`r3f_penalty`.
        options: the options of :class:`advreg.SimCut`.

    Example:
        >>> float(simcut_penalty(model.eval(), batch, cut=0.0))
        0.0
    """
    return _penalty(SimCut(**options), model, batch)


def arch_penalty(
    model: nn.Module | HFModelView, batch: Batch, delta: Perturbation, **options: Any
) -> Tensor:
    """ℓ_v(x, δ, θ) at a perturbation that you keep; see :class:`advreg.Arch`.

    Args:
        model, batch: as for :func:`r3f_penalty`.
        delta: δ of each sample of the batch.
        options: the options of :class:`advreg.Arch`.

    Example:
        >>> view = HFModelView(model.eval())
        >>> delta = view.zeros(batch)
        >>> float(arch_penalty(view, batch, delta))
        0.0
    """
    view, method = _view_of(model), Arch(**options)
    with view.dropout(method.dropout):
        clean = CleanPass(view, batch)
        perturbed = method.beside(clean, delta)
        return method.compared(view, batch, clean.logits, perturbed).value


def _penalty(method: Regulariser, model: nn.Module | HFModelView, batch: Batch) -> Tensor:
    view = _view_of(model)
    with view.dropout(dropout_of([method])):
        return method.penalty(view, batch, CleanPass(view, batch), _NOW).value


def _view_of(model: nn.Module | HFModelView) -> ModelView:
    return cast(ModelView, model if isinstance(model, HFModelView) else HFModelView(model))
