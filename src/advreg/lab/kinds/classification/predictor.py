"""Classes with their probabilities, or scores, from a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import BatchEncoding

from advreg.core.checks import check_count
from advreg.core.options import option
from advreg.hf.data import Limits
from advreg.lab.kinds.models import ModelError, load_any, load_tokenizer
from advreg.lab.kinds.predictor import (
    PREDICTION,
    Predictor,
    PredictorOptions,
    Text,
    usable_device,
)


@dataclass(frozen=True)
class ClassificationOptions(PredictorOptions):
    """How to predict classes and scores."""

    batch_size: int = option(64, "texts of a batch", check=check_count)
    all_classes: bool = option(False, "a column with the probability of each class")


@dataclass(frozen=True)
class ClassificationPredictor(Predictor):
    """A classifier, or a regressor with one output. Texts are cut as in the training."""

    model: Any
    tokenizer: Any
    longest: int
    asked: ClassificationOptions

    options = ClassificationOptions

    @classmethod
    def load(cls, folder: Path, options: ClassificationOptions) -> Self:
        device = usable_device(options.device)
        model, tokenizer = load_any(str(folder)), load_tokenizer(str(folder), (), 0)
        if model.config.problem_type == "multi_label_classification":
            raise ModelError(
                f"'{folder}' predicts several labels at once, which advreg predict does not; use "
                'transformers.pipeline("text-classification", top_k=None)'
            )
        limits = (Limits.of(model).positions, tokenizer.model_max_length)
        longest = min(limit for limit in limits if limit is not None)
        return cls(model.to(device).eval(), tokenizer, longest, options)

    @property
    def is_regression(self) -> bool:
        """Whether the model has one output, a score."""
        return int(self.model.config.num_labels) == 1

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[Text], advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        encoded = self._encoded(texts)
        order = sorted(range(len(texts)), key=lambda index: len(encoded["input_ids"][index]))
        outputs: dict[int, Tensor] = {}
        for first in range(0, len(order), self.asked.batch_size):
            rows = order[first : first + self.asked.batch_size]
            batch = {name: [column[row] for row in rows] for name, column in encoded.items()}
            outputs |= zip(rows, self._logits(batch), strict=True)
            advance(len(rows))
        return [self._row(outputs[index]) for index in range(len(texts))]

    def _encoded(self, texts: Sequence[Text]) -> BatchEncoding:
        pairs = None if texts[0].pair is None else [text.pair or "" for text in texts]
        found: BatchEncoding = self.tokenizer(
            [text.text for text in texts], pairs, truncation=True, max_length=self.longest
        )
        return found

    def _logits(self, batch: dict[str, Any]) -> Tensor:
        device = self.model.device
        padded = self.tokenizer.pad(batch, return_tensors="pt").to(device)
        enabled = self.asked.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            logits: Tensor = self.model(**padded).logits
        return logits.float().cpu()

    def _row(self, logits: Tensor) -> dict[str, Any]:
        if self.is_regression:
            return {PREDICTION: logits.item()}
        names, shares = self.model.config.id2label, logits.softmax(-1)
        best = int(shares.argmax())
        each = {f"p({names[index]})": float(share) for index, share in enumerate(shares)}
        row = {PREDICTION: names[best], "probability": float(shares[best])}
        return {**row, **each} if self.asked.all_classes else row


PREDICTOR = ClassificationPredictor
