"""Trainers and models with a loss of their own, as users write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertForSequenceClassification, Trainer
from transformers.modeling_outputs import SequenceClassifierOutput

CLASS_WEIGHTS = (1.0, 5.0, 0.2)
CALLS: list[str] = []
"""Which compute_loss was called; a test empties it."""


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, weight=torch.tensor(CLASS_WEIGHTS))


class WeighsClasses(BertForSequenceClassification):  # type: ignore[misc]
    """Its forward pass computes the loss with weights of the classes."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> Any:
        logits = super().forward(input_ids, attention_mask, **others).logits
        return SequenceClassifierOutput(
            loss=None if labels is None else weighted(logits, labels), logits=logits
        )


class LossWithoutSuper(Trainer):  # type: ignore[misc]
    """``compute_loss`` as most scripts override it: the model is called here, and super() is
    not.
    """

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        CALLS.append("without super")
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = 3 * weighted(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


class LossWithSuper(Trainer):  # type: ignore[misc]
    """``compute_loss`` that adds to stock's."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        CALLS.append("with super")
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        loss = loss + 0.1 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def loss_function(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """For ``compute_loss_func``."""
    CALLS.append("function")
    total = F.cross_entropy(
        outputs.logits, labels, weight=torch.tensor(CLASS_WEIGHTS), reduction="sum"
    )
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)
