"""The entries of a batch, and which of them enter the model's forward pass."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from advreg.hf.patches.mask_sync import PADDED
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import has_decoder
from advreg.methods.base import Batch

SAMPLE_ID = "sample_id"
ITEMS = "num_items_in_batch"

ModelInputs = dict[str, Any]
"""The arguments of a forward pass: tensors, flags, and what else a model takes."""

_OF_ADVREG = (SAMPLE_ID, ITEMS, PADDED)


class Inputs:
    """The arguments of a model's forward pass, taken from a batch.

    Args:
        core: the Hugging Face model without wrappers.
    """

    def __init__(self, core: PreTrainedModel) -> None:
        self._core = core
        self.parameters = inspect.signature(core.forward).parameters
        self.has_decoder = has_decoder(core)
        # A classifier with a decoder shifts the text for it: both read the same text.
        self.reads_twice = self.has_decoder and "Classification" in type(core).__name__

    @cached_property
    def takes_items(self) -> bool:
        """Whether the forward pass takes the number of items to divide the loss by."""
        kinds = self.parameters.values()
        default = any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in kinds)
        return bool(getattr(self._core, "accepts_loss_kwargs", default))

    @cached_property
    def requires_labels(self) -> bool:
        """Whether the forward pass cannot be called without labels."""
        labels = self.parameters.get("labels")
        return labels is not None and labels.default is inspect.Parameter.empty

    def with_labels(self, batch: Batch) -> ModelInputs:
        """The entries that the collator made for the model."""
        return {name: value for name, value in batch.items() if name not in _OF_ADVREG}

    def without_labels(self, batch: Batch, labels: Tensor | None = None) -> ModelInputs:
        """The arguments of a prediction, for which the model computes no loss.

        Args:
            batch: the batch, or the arguments that a loss function passes to the model.
            labels: what a decoder predicts, if the labels are no longer in ``batch``.
        """
        inputs = self.with_labels(batch)
        inputs.pop("labels", None)
        if self.has_decoder and "decoder_input_ids" not in inputs and not self.reads_twice:
            read: Tensor = batch["labels"] if labels is None else labels
            inputs["decoder_input_ids"] = decoder_inputs(self._core, read)
        if "use_cache" in self.parameters:
            inputs.setdefault("use_cache", False)
        return inputs


def decoder_inputs(core: PreTrainedModel, labels: Tensor) -> Tensor:
    """The decoder's input for these labels: the start token, then each label but the last."""
    prepare = getattr(core, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        prepared: Tensor = prepare(labels=labels)
        return prepared
    pad = core.config.pad_token_id
    start = getattr(core.config, "decoder_start_token_id", None)
    shifted = F.pad(labels[:, :-1], (1, 0), value=pad if start is None else start)
    return shifted.masked_fill(shifted == IGNORED, pad)


def sample_ids(batch: Batch) -> Tensor:
    """Stable dataset ids of the batch, (B,)."""
    if SAMPLE_ID not in batch:
        raise KeyError(
            f"the batch has no '{SAMPLE_ID}', which this method needs to remember samples; "
            "train with AdversarialTrainer, advreg.attach or advreg.prepare"
        )
    ids: Tensor = batch[SAMPLE_ID]
    return ids
