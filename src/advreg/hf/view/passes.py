"""The passes over a model: the trained pass, and passes for predictions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from advreg.core.perturbation import Perturbation
from advreg.hf.guards.capability import refusal
from advreg.hf.patches.mask_sync import PADDED, known_padding
from advreg.hf.view.calls import Calls, Context, Forward
from advreg.hf.view.doubling import Fusing, twice
from advreg.hf.view.dropout import DropoutModes
from advreg.hf.view.head import Head
from advreg.hf.view.inputs import Inputs
from advreg.hf.view.streams import Delta, Streams
from advreg.hf.view.trained_pass import TrainedPass, prediction_of
from advreg.methods.base import Batch

ComputeLoss = Callable[[nn.Module, dict[str, Any], Batch, int], Tensor]


class Passes:
    """Predictions of a model and the task loss of its trained pass.

    Args:
        core: the Hugging Face model without wrappers.
        inputs, head, streams, dropout: of the model.
        context: entered around every pass, for autocast.
        compute_loss: makes the trained pass and returns the loss.
        means: whether that loss is a mean over samples or tokens that widens the logits itself.
    """

    calls: Calls  # how the model is called

    def __init__(
        self,
        core: PreTrainedModel,
        inputs: Inputs,
        head: Head,
        streams: Streams,
        dropout: DropoutModes,
        context: Context,
        compute_loss: ComputeLoss,
        means: bool,
    ) -> None:
        self.core, self.inputs, self.head = core, inputs, head
        self.streams, self.dropout, self._context = streams, dropout, context
        self.compute_loss, self.means = compute_loss, means
        self.fusing = Fusing(core, head)
        self._last: TrainedPass | None = None

    def logits(self, batch: Batch, delta: Delta = None) -> Tensor:
        return self._trained_pass(batch, delta).logits()

    def loss_at(self, batch: Batch, delta: Delta = None) -> Tensor:
        loss, self._last = self._trained_pass(batch, delta, needs_logits=False).loss, None
        return loss

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        made, self._last = self._last, None  # or its graph would outlive the step
        if made is None or made.logits() is not logits:
            raise ValueError(
                "the task loss belongs to the last trained pass: call loss() once, with its logits"
            )
        return made.loss

    def bare_logits(self, batch: Batch, delta: Delta = None) -> Tensor:
        return self._prediction(self.calls.bare, batch, delta)

    def ascent_logits(self, batch: Batch, delta: Perturbation) -> Tensor:
        return self._prediction(self.calls.ascent, batch, delta)

    def averaged(self, batch: Batch, parameters: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return self._prediction(partial(self.calls.averaged, dict(parameters)), batch, None)

    def paired_logits(
        self, batch: Batch, delta: Delta, fuse: bool = True, both_losses: bool = False
    ) -> tuple[Tensor, Tensor]:
        if fuse and both_losses:
            fuse = self.means and self.fusing.may_double(self.inputs.without_labels(batch))
        made = self._fused(batch, delta, both_losses) if fuse else None
        made = made or self._trained_pass(batch)
        if made.perturbed is not None:
            return made.logits(), made.perturbed
        # A second pass goes past the wrapper: DDP wants one wrapped forward per backward.
        if not both_losses:
            return made.logits(), self.bare_logits(batch, delta)
        other = self._trained_pass(batch, delta, model=self.calls.bare)
        made.loss, self._last = (made.loss + other.loss) / 2, made
        return made.logits(), other.logits()

    def accumulating(self) -> AbstractContextManager[None]:
        # DDP has no_sync; FSDP exchanges gradients in each pass, because keeping them until the
        # last pass would take the memory that it saves
        context: AbstractContextManager[None] = getattr(
            self.calls.trained, "no_sync", nullcontext
        )()
        return context

    def _fused(self, batch: Batch, delta: Delta, both_losses: bool) -> TrainedPass | None:
        """One trained pass over both copies, unless memory runs out."""
        try:
            return self._trained_pass(
                batch, delta, doubled=not both_losses, both_losses=both_losses
            )
        except torch.OutOfMemoryError:
            if not self.fusing.stop():
                raise
            return None

    def _trained_pass(
        self,
        batch: Batch,
        delta: Delta = None,
        doubled: bool = False,
        both_losses: bool = False,
        model: nn.Module | None = None,
        needs_logits: bool = True,
    ) -> TrainedPass:
        """The pass that computes the task loss, through the trained model or the one given."""
        if needs_logits and "labels" not in batch:
            raise refusal(
                "predictions", "the batches have no `labels`, which say what is predicted"
            )
        self._check_resolution(batch, delta)
        self._last = None  # its graph is not needed any more
        self.fusing.begin_pass(both_losses)
        made = TrainedPass(self, batch, delta, doubled, both_losses, needs_logits)
        inputs = self.inputs.with_labels(batch)
        with self._context(), self.calls.patched(), self._known_padding(batch):
            made.make(
                self.calls.trained if model is None else model,
                twice(inputs) if both_losses else inputs,
            )
        self._last = made
        return made

    def _prediction(self, forward: Forward, batch: Batch, delta: Delta) -> Tensor:
        """A pass for predictions alone."""
        self._check_resolution(batch, delta)
        self.dropout.begin_pass()
        inputs = self.inputs.without_labels(batch)
        adding = self.streams.adding(delta, batch)
        with adding, self._context(), self.calls.patched(), self._known_padding(batch):
            return prediction_of(forward(**inputs))

    def _check_resolution(self, batch: Batch, delta: Delta) -> None:
        if self.calls.is_compiled:  # a graph cannot look at values
            self.streams.check_resolution(batch, delta)

    def _known_padding(self, batch: Batch) -> AbstractContextManager[None]:
        """Within, transformers reads no masks; a pass that is compiled as a whole never does."""
        padded = batch.get(PADDED)
        if padded is None or self.calls.is_whole:
            return nullcontext()
        return known_padding(padded, self.inputs.has_decoder)
