"""A Hugging Face model as a :class:`~advreg.methods.base.ModelView`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from advreg.core.perturbation import Perturbation
from advreg.hf.counting import PassCount
from advreg.hf.guards.capability import refusal
from advreg.hf.patches.mask_sync import PADDED, known_padding
from advreg.hf.view.calls import Calls, Context, Forward, calls_of
from advreg.hf.view.doubling import Fusing, part_of, rows_of, twice
from advreg.hf.view.dropout import DropoutModes, has_dropout
from advreg.hf.view.gradient import PerturbationGradient, require_non_reentrant
from advreg.hf.view.head import Head
from advreg.hf.view.injection import bare, uncompiled
from advreg.hf.view.inputs import Inputs, ModelInputs, sample_ids
from advreg.hf.view.losses import Losses
from advreg.hf.view.streams import Delta, Streams
from advreg.hf.view.trained_pass import TrainedPass, prediction_of
from advreg.methods.base import Batch

ComputeLoss = Callable[[nn.Module, ModelInputs, Batch, int], Tensor]


class HFModelView:
    """Any Hugging Face model with a classification, regression, sequence-to-sequence or
    language-modelling head.

    Args:
        model: the model: bare, compiled, or wrapped by PEFT.
        site: where δ is added; see :func:`advreg.hf.view.injection.find_sites`.
        half: whether the model runs in float16, so that the inner objective must be scaled against
            underflow.
        context: entered around every pass, for autocast.
        compute_loss: replaces the whole pass that computes the loss, as a trainer's
            ``compute_loss`` does: called with the model, its inputs, the batch and the number of
            copies of the batch in the inputs, it calls the model once and returns the loss.
        means: whether that loss is a mean over samples or tokens that widens the logits itself, as
            transformers' own.
        perturbs: whether δ is added; otherwise the model needs no token embeddings.

    The task loss is what the model's own forward pass returns, unless ``compute_loss`` says
    otherwise.

    A batch is the mapping a data loader yields: the model's inputs with ``labels``; ``sample_id``
    for methods that remember samples; ``num_items_in_batch`` if the loss is divided by more than
    this batch's own items; ``padded``, the result of
    :func:`advreg.hf.patches.mask_sync.padding_of`, which saves a GPU synchronisation per pass.

    If the model is compiled, every pass is compiled, and the hooks that add δ are installed when
    the view is made, before the model is traced, and stay until :meth:`release`. With
    ``mode="reduce-overhead"``, call ``torch.compiler.cudagraph_mark_step_begin()`` before each
    optimizer step's first pass: predictions must outlive the passes that follow them.

    Example:
        >>> view = HFModelView(model)
        >>> clean, perturbed = view.paired_logits(batch, view.zeros(batch))
        >>> clean.shape == perturbed.shape
        True
    """

    def __init__(
        self,
        model: nn.Module,
        site: str = "tokens",
        half: bool = False,
        context: Context = nullcontext,
        compute_loss: ComputeLoss | None = None,
        means: bool = True,
        perturbs: bool = True,
    ) -> None:
        self.model: nn.Module = uncompiled(model)
        self.core: PreTrainedModel = bare(model)
        self.prediction_head = Head(self.core)
        self.inputs = Inputs(self.core)
        self.modes = DropoutModes(self.model, context)
        self.streams = Streams(model, site, self.inputs, self.modes.without_trace)
        losses = Losses(self.model, self.prediction_head, self.inputs, self.modes.without_trace)
        self.fusing = Fusing(self.core, self.prediction_head)
        self.compute_loss = compute_loss or losses.of_pass
        self.means, self.context, self.perturbs = means, context, perturbs
        if perturbs:
            _ = self.streams.injection  # a model without sites is refused here and not in training
            require_non_reentrant(model)
        self._calls_of = partial(calls_of, self.model, half, means)
        self.delta_gradient = PerturbationGradient(half)
        self._last: TrainedPass | None = None
        self.count_in(PassCount())
        self.train_through(model)

        self.items = losses.items
        self.count = losses.count
        self.honours_items = losses.honours_items
        self.divergence = losses.divergence
        self.prediction = losses.prediction
        self.targets = losses.targets
        self.zeros = self.streams.zeros
        self.masks = self.streams.masks
        self.tokens = self.streams.tokens
        self.widths = self.streams.widths
        self.dropout = self.modes.mode
        self.unfuse = self.fusing.stop
        self.sample_ids = sample_ids
        self.part = part_of

    # ---- the model

    def train_through(self, model: nn.Module) -> None:
        """From now on make the trained pass by this model: wrapped by DDP, compiled, or both."""
        if hasattr(self, "calls") and model is self.calls.trained:
            return
        self.calls: Calls = self._calls_of(model)
        self.prediction_head.compiles = self.calls.compiles_losses
        if self.calls.is_compiled and self.perturbs:
            self.streams.injection.stay()

    def release(self) -> None:
        """Make eager passes from now on, and take the hooks off a compiled model."""
        self.train_through(self.model)
        if self.perturbs:
            self.streams.injection.leave()

    def accumulating(self) -> AbstractContextManager[None]:
        # DDP has no_sync; FSDP exchanges gradients in each pass, because keeping them until the
        # last pass would take the memory that it saves
        no_sync: Callable[[], AbstractContextManager[None]] = getattr(
            self.calls.trained, "no_sync", nullcontext
        )
        return no_sync()

    def parameters(self) -> Mapping[str, Tensor]:
        """The trained parameters by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def is_causal(self) -> bool:
        """Whether the model is a decoder without an encoder."""
        masks_the_future = any(
            getattr(module, "is_causal", False) for module in self.core.modules()
        )
        return not self.inputs.has_decoder and (self.prediction_head.shifts or masks_the_future)

    def has_dropout(self) -> bool:
        """Whether two training passes over the same batch differ."""
        return has_dropout(self.model)

    # ---- the trained pass, which computes the task loss

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
        """A pass through the trained model or the one given."""
        if needs_logits and "labels" not in batch:
            raise refusal(
                "predictions", "the batches have no `labels`, which say what is predicted"
            )
        self._last = None  # its graph is not needed any more
        self.fusing.begin_pass(both_losses)
        made = TrainedPass(self, batch, delta, doubled, both_losses, needs_logits)
        inputs = self.inputs.with_labels(batch)
        with self._around(batch, delta):
            made.make(model or self.calls.trained, twice(inputs) if both_losses else inputs)
        self._count(batch, copies=1 if made.perturbed is None else 2)
        self._last = made
        return made

    # ---- passes for predictions alone

    def bare_logits(self, batch: Batch, delta: Delta = None) -> Tensor:
        return self._prediction(self.calls.bare, batch, delta)

    def ascent_logits(self, batch: Batch, delta: Perturbation) -> Tensor:
        return self._prediction(self.calls.ascent, batch, delta)

    def averaged(self, batch: Batch, parameters: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return self._prediction(partial(self.calls.averaged, dict(parameters)), batch, None)

    def gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        self._passes.backward += self._share
        return self.delta_gradient(objective, delta)

    def _prediction(self, forward: Forward, batch: Batch, delta: Delta) -> Tensor:
        inputs = self.inputs.without_labels(batch)
        with self._around(batch, delta), self.streams.adding(delta, batch):
            self.modes.begin_pass()
            logits = prediction_of(forward(**inputs))
        self._count(batch)
        return logits

    # ---- around every pass

    @contextmanager
    def _around(self, batch: Batch, delta: Delta) -> Iterator[None]:
        """The contexts that every pass needs."""
        if self.calls.is_compiled:  # a graph cannot look at values
            self.streams.check_resolution(batch, delta)
        with ExitStack() as around:
            for context in (self.context, *self.calls.patches):
                around.enter_context(context())
            if not self.calls.is_whole and PADDED in batch:
                around.enter_context(known_padding(batch[PADDED], self.inputs.has_decoder))
            yield

    def count_in(self, passes: PassCount, rows: int | None = None) -> None:
        """From now on count passes there.

        Args:
            passes: what is counted up.
            rows: rows of a batch that are one pass; by default those of any batch.
        """
        self._passes, self._rows, self._share = passes, rows, 1.0

    def _count(self, batch: Batch, copies: int = 1) -> None:
        if self._rows is not None:
            self._share = rows_of(batch) / self._rows  # the next gradient goes back through it
        self._passes.forward += copies * self._share
