"""Streams: the sequences of embeddings that δ is added to, their tokens, masks and widths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.guards.capability import refusal
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import Injection, bare, uncompiled
from advreg.hf.view.inputs import Inputs, decoder_inputs
from advreg.hf.view.packing import Documents
from advreg.methods.base import Batch

Delta = Perturbation | Cut | None


class Streams:
    """The streams of a model: ``tokens``, or ``encoder`` and ``decoder``.

    Args:
        model: the model, bare, compiled or wrapped by PEFT.
        site: where δ is added; see :func:`advreg.hf.view.injection.find_sites`.
        inputs: of the model.
        without_trace: entered around passes that only look at embeddings.
    """

    def __init__(
        self,
        model: nn.Module,
        site: str,
        inputs: Inputs,
        without_trace: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._model, self._site, self._inputs = model, site, inputs
        self._core: PreTrainedModel = bare(model)
        self._without_trace = without_trace
        self._widths: dict[str, int] = {}
        self._unusual_layout = ""

    @cached_property
    def injection(self) -> Injection:
        """Where δ enters the model."""
        return Injection(self._model, self._site)

    def adding(self, delta: Delta, batch: Batch) -> AbstractContextManager[object]:
        """Within, δ is added to the embeddings of the one pass that is made.

        The rows of the batch may hold several documents, each with its own row of δ.
        """
        if delta is None:
            return nullcontext()
        documents = self._documents(batch)
        return self.injection.adding(delta if documents is None else documents.packed(delta))

    def check_resolution(self, batch: Batch, delta: Delta) -> None:
        """Warn, once, when δ is below the resolution of the embeddings' dtype."""
        if isinstance(delta, Perturbation) and self.injection.unchecked():
            for stream, output in self.embeddings(batch).items():
                self.injection.check_resolution(output, delta.values[stream], stream)

    def embeddings(self, batch: Batch) -> dict[str, Tensor]:
        """The embeddings that the δ of each stream is added to, by a pass without side effects."""
        inputs = self._inputs.without_labels(batch)
        if self._inputs.requires_labels:
            inputs["labels"] = batch["labels"]
        with self._without_trace(), self.injection.watching() as seen:
            uncompiled(self._model)(**inputs)
        return seen

    def widths(self, batch: Batch) -> dict[str, int]:
        """Width D of the embeddings of each stream.

        The first call makes a pass, which also proves that δ reaches every stream.
        """
        if not self._widths:
            seen = self.embeddings(batch)
            self._unusual_layout = self._unusual(batch, seen)
            self._widths = {stream: output.shape[-1] for stream, output in seen.items()}
        return self._widths

    def _unusual(self, batch: Batch, seen: Mapping[str, Tensor]) -> str:
        """A description of embeddings that are not (B, T, D) for token ids (B, T), or nothing."""
        inputs = self._inputs.without_labels(batch)
        for stream, output in seen.items():
            read = inputs.get("decoder_input_ids") if stream == "decoder" else None
            shape = tuple((inputs["input_ids"] if read is None else read).shape)
            if tuple(output.shape[:-1]) != shape:
                return (
                    f"{type(self._core).__name__} has embeddings {tuple(output.shape)} for token "
                    f"ids {shape}"
                )
        return ""

    def zeros(self, batch: Batch) -> Perturbation:
        """δ = 0 for this batch, in float32 or wider."""
        masks = self.masks(batch)
        dtype = torch.promote_types(next(self._core.parameters()).dtype, torch.float32)
        return Perturbation.zeros(masks, self._widths, dtype)

    def masks(self, batch: Batch) -> dict[str, Tensor]:
        """Real tokens of each stream, (B, T)."""
        self.widths(batch)
        if self._unusual_layout:
            raise refusal(
                "perturbation",
                self._unusual_layout,
                "name a module that outputs (B, T, D) as site=",
            )
        return {stream: mask for stream, (_, mask) in self.tokens(batch).items()}

    def tokens(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Token ids and mask of real tokens of each stream, (B, T) each."""
        inputs = self._inputs.without_labels(batch)
        ids: Tensor = inputs["input_ids"]
        if not self._inputs.has_decoder:
            documents = self._documents(batch)
            if documents is not None:
                return {"tokens": (documents.apart(ids), documents.mask)}
            return {"tokens": (ids, self._real(inputs))}
        targets: Tensor | None = inputs.get("decoder_input_ids")
        if targets is None:
            targets = decoder_inputs(self._core, ids)
        return {
            "encoder": (ids, self._real(inputs)),
            "decoder": (targets, self._real_targets(inputs, batch)),
        }

    def _real(self, inputs: Batch) -> Tensor:
        mask: Tensor | None = inputs.get("attention_mask")
        ids: Tensor = inputs["input_ids"]
        if mask is not None and mask.dim() == 2:
            return mask.bool()
        pad = getattr(self._core.config, "pad_token_id", None)
        return torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad

    def _real_targets(self, inputs: Batch, batch: Batch) -> Tensor:
        """Decoder inputs run one step behind the labels, so position t is real where there is a
        label at t.
        """
        given: Tensor | None = inputs.get("decoder_attention_mask")
        if given is not None:
            return given.bool()
        if "decoder_input_ids" not in inputs:
            return real_behind(self._real(inputs))
        ids: Tensor = inputs["decoder_input_ids"]
        labels: Tensor | None = batch.get("labels")
        if labels is not None and labels.shape == ids.shape:
            return labels != IGNORED
        real: Tensor = ids != self._core.config.pad_token_id
        real[:, 0] = True  # the start token may be the padding token
        return real

    def _documents(self, batch: Batch) -> Documents | None:
        return None if self._inputs.has_decoder else Documents.of(batch)


def real_behind(real: Tensor) -> Tensor:
    """Real positions of a decoder that reads a text one step behind, (B, T).

    It reads the start token, then all tokens but the last. The last token of a text fits in only if
    padding follows, and comes after the position that the head reads. It is left out of every text,
    so that a text of n tokens has n positions with any padding.
    """
    to_come = real.flip(1).cumsum(1).flip(1)  # real tokens from here on
    return F.pad((real & (to_come > 1))[:, :-1], (1, 0), value=True)
