"""The task loss of a batch: how it is computed, and what it is divided by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from advreg.core.divergence import Divergence, Prediction, divergence
from advreg.hf.view.head import IGNORED, Head, counted
from advreg.hf.view.inputs import ITEMS, Inputs, ModelInputs
from advreg.methods.base import Batch


class Losses:
    """Losses and divergences of a model's predictions.

    Args:
        model: the model, neither compiled as a whole nor wrapped.
        head: its prediction head.
        inputs: of the model.
        without_trace: entered around passes that only look at a loss.
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head,
        inputs: Inputs,
        without_trace: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._model, self._inputs, self._without_trace = model, inputs, without_trace
        self.head = head
        self._honours: bool | None = None

    def of_pass(
        self, model: nn.Module, inputs: ModelInputs, batch: Batch, copies: int = 1
    ) -> Tensor:
        """The loss of a loop without a trainer, by one pass."""
        items = None if batch.get(ITEMS) is None else batch[ITEMS] * copies
        if items is not None and self._inputs.takes_items:
            inputs[ITEMS] = items
        loss: Tensor = model(**inputs)["loss"]
        if items is None or self.honours_items(batch):
            return loss
        scaled: Tensor = loss * copies * self.count(batch) / items
        return scaled

    def honours_items(self, batch: Batch) -> bool:
        """Whether the loss of the forward pass is divided by a given number of items.

        Many models accept the number and ignore it. The loss of an unknown model is computed with
        two numbers, once.
        """
        if self.head.computes(batch.get("labels")):
            return self._inputs.takes_items
        if self._honours is None:
            inputs = self._inputs.with_labels(batch)
            items = torch.as_tensor(self.count(batch))
            with self._without_trace():
                one, other = (
                    self._model(**inputs, **{ITEMS: items * times})["loss"] for times in (1, 2)
                )
            self._honours = not bool(torch.isclose(one, other))
        return self._honours

    def items(self, batch: Batch) -> Tensor:
        """The denominator of the task loss: items of the accumulation group, or of this batch."""
        given = batch.get(ITEMS)
        if given is None:
            return self.count(batch)
        return torch.as_tensor(given, device=batch["labels"].device)

    def count(self, batch: Batch) -> Tensor:
        """Samples (classification, regression) or target tokens of this batch alone."""
        labels: Tensor = batch["labels"]
        return counted(
            labels[:, 1:] if self.head.shifts and not labels.is_floating_point() else labels
        )

    def divergence(
        self,
        clean: Tensor,
        perturbed: Tensor,
        batch: Batch,
        kind: Divergence,
        detach_clean: bool = False,
    ) -> Tensor:
        """ℓ_v summed over the predicted items of the batch."""
        prediction = self.prediction(clean, batch)
        measure = self.head.over(divergence, clean)
        rows = clean.flatten(0, -2), perturbed.flatten(0, -2)
        moved = measure(*rows, kind, prediction, detach_clean).view(
            clean.shape[:-1]
        )  # (B,) or (B, T)
        if prediction != "classes" or batch.get("labels") is None:
            return moved.sum()
        labels = self.head.aligned(moved, batch["labels"])
        return moved.masked_fill(labels == IGNORED, 0.0).sum()

    def prediction(self, logits: Tensor, batch: Batch) -> Prediction:
        """What the head predicts: classes, several labels at once, or a value."""
        return self.head.prediction(logits, batch.get("labels"))

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The labels position by position, and which of them count; in a regression, all do."""
        labels: Tensor = batch["labels"]
        if labels.is_floating_point():
            return labels, torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        labels = self.head.aligned(labels, labels)
        return labels, labels != IGNORED
