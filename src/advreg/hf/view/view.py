"""A Hugging Face model as a :class:`~advreg.methods.base.ModelView`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedModel

from advreg.hf.view.calls import Context, calls_of
from advreg.hf.view.doubling import part_of
from advreg.hf.view.dropout import DropoutModes, has_dropout
from advreg.hf.view.gradient import PerturbationGradient, require_non_reentrant
from advreg.hf.view.head import Head
from advreg.hf.view.injection import bare, uncompiled
from advreg.hf.view.inputs import Inputs, sample_ids
from advreg.hf.view.losses import Losses
from advreg.hf.view.passes import ComputeLoss, Passes
from advreg.hf.view.streams import Streams


class HFModelView:
    """Any Hugging Face model with a classification, regression, sequence-to-sequence or
    language-modelling head.

    Args:
        model: the model: bare, compiled, or wrapped by PEFT.
        site: where δ is added; see :func:`advreg.hf.view.injection.find_sites`.
        label_smoothing: of the task's cross-entropy.
        half: whether the model runs in float16, so that the inner objective must be scaled against
            underflow.
        context: entered around every pass, for autocast.
        compute_loss: replaces the whole pass that computes the loss, as a trainer's
            ``compute_loss`` does: called with the model, its inputs, the batch and the number of
            copies of the batch in the inputs, it calls the model once and returns the loss.
        means: whether that loss is a mean over samples or tokens that widens the logits itself, as
            transformers' own.
        perturbs: whether δ is added; otherwise the model needs no token embeddings.

    The task loss is what the model's own forward pass returns, unless one of the arguments says
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
        label_smoothing: float = 0.0,
        half: bool = False,
        context: Context = nullcontext,
        compute_loss: ComputeLoss | None = None,
        means: bool = True,
        perturbs: bool = True,
    ) -> None:
        self.model: nn.Module = uncompiled(model)
        self.core: PreTrainedModel = bare(model)
        self.prediction_head = head = Head(self.core)
        self.inputs = inputs = Inputs(self.core)
        self.modes = modes = DropoutModes(self.model, context)
        self.streams = streams = Streams(model, site, inputs, modes.without_trace)
        losses = Losses(self.model, head, inputs, label_smoothing, modes.without_trace)
        self.means, self.context = means, context
        self._passes = passes = Passes(
            self.core, inputs, head, streams, modes, context, compute_loss or losses.of_pass, means
        )
        self.perturbs = perturbs
        if perturbs:
            _ = streams.injection  # a model without sites is refused here and not in training
            require_non_reentrant(model)
        self._calls_of = partial(calls_of, self.model, half, means)
        self._trained: nn.Module | None = None
        self.train_through(model)

        self.logits = passes.logits
        self.loss = passes.loss
        self.loss_at = passes.loss_at
        self.bare_logits = passes.bare_logits
        self.ascent_logits = passes.ascent_logits
        self.paired_logits = passes.paired_logits
        self.averaged = passes.averaged
        self.accumulating = passes.accumulating
        self.unfuse = passes.fusing.stop
        self.items = losses.items
        self.count = losses.count
        self.honours_items = losses.honours_items
        self.divergence = losses.divergence
        self.prediction = losses.prediction
        self.targets = losses.targets
        self.zeros = streams.zeros
        self.masks = streams.masks
        self.tokens = streams.tokens
        self.widths = streams.widths
        self.gradient = PerturbationGradient(half)
        self.dropout = modes.mode
        self.sample_ids = sample_ids
        self.part = part_of

    @property
    def wrapped(self) -> nn.Module:
        """The model that makes the trained pass, set by :meth:`train_through`."""
        return self._passes.calls.trained

    def train_through(self, model: nn.Module) -> None:
        """From now on make the trained pass by this model: wrapped by DDP, compiled, or both."""
        if model is self._trained:
            return
        self._trained = model
        calls = self._passes.calls = self._calls_of(model)
        self.prediction_head.compiles = calls.compiles_losses
        if calls.is_compiled and self.perturbs:
            self.streams.injection.stay()

    def release(self) -> None:
        """Make eager passes from now on, and take the hooks off a compiled model."""
        self.train_through(self.model)
        if self.perturbs:
            self.streams.injection.leave()

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
