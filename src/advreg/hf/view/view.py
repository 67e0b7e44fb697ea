"""A Hugging Face model as a :class:`~advreg.methods.base.ModelView`: predictions, losses and
gradients of a batch.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advreg.core.ascent import input_gradient
from advreg.core.divergence import Divergence, Prediction
from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.guards.capability import UnsupportedError, refusal
from advreg.hf.guards.randomness import kept_randomness, random_states, set_random_states
from advreg.hf.patches.layerdrop import draws_in_vain, layers_kept
from advreg.hf.patches.logit_precision import NarrowLogits
from advreg.hf.patches.mask_sync import PADDED, known_padding
from advreg.hf.view.doubling import is_per_sample, reason_against, rows_of, twice
from advreg.hf.view.dropout import has_dropout
from advreg.hf.view.head import IGNORED, Head
from advreg.hf.view.injection import (
    Injection,
    bare,
    compiled_parts,
    has_decoder,
    is_compiled,
    uncompiled,
)
from advreg.hf.view.packing import Documents
from advreg.hf.view.trained_pass import TrainedPass, prediction_of
from advreg.methods.base import Batch, Dropout

SAMPLE_ID = "sample_id"
ITEMS = "num_items_in_batch"

_FIRST_INNER_SCALE = 2.0**16

_NOT_FOR_THE_MODEL = ("labels", SAMPLE_ID, ITEMS, PADDED)

logger = logging.getLogger(__name__)

LossFunction = Callable[[Tensor, Batch, Tensor], Tensor]
ComputeLoss = Callable[[nn.Module, dict[str, Any], Batch, int], Tensor]


class CheckpointingError(UnsupportedError, RuntimeError):
    """Reentrant gradient checkpointing cannot be differentiated with respect to δ."""


class HFModelView:
    """Any Hugging Face model with a classification, regression, sequence-to-sequence or
    language-modelling head.

    Args:
        model: the model, bare or wrapped by PEFT, or what ``torch.compile`` made of it.
        site: where δ is added; see :func:`advreg.hf.view.injection.find_sites`.
        label_smoothing: of the task's cross-entropy.
        loss_function: replaces the task loss; called with logits, batch and the denominator.
        compute_loss: replaces the whole pass that computes the loss, as a trainer's
            ``compute_loss`` does: called with the model, its inputs, the batch and the number of
            copies of the batch in the inputs, it calls the model once and returns the loss.
        perturbs: whether δ is added; otherwise the model needs no token embeddings.
        means: whether that loss is a mean over samples or tokens that widens the logits itself, as
            transformers' own.
        half: is the model run in float16, so that the inner objective must be scaled against
            underflow?
        context: entered around every pass, for autocast.

    The task loss is what the model's own forward pass returns, unless one of the arguments says
    otherwise.

    A batch is the mapping a data loader yields: the model's inputs with ``labels``; ``sample_id``
    for methods that remember samples; ``num_items_in_batch`` if the loss is to be divided by more
    than this batch's own items; ``padded``, what :func:`advreg.hf.patches.mask_sync.padding_of`
    says of it, so that no pass waits for a GPU to tell.

    Of a compiled model every pass is compiled, and the hooks that add δ are put on when the task is
    made, before the model is traced, and stay until :meth:`release`. With
    ``mode="reduce-overhead"``, call ``torch.compiler.cudagraph_mark_step_begin()`` before each
    optimizer step's first pass: predictions must outlive the passes that follow them.

    Example:
        >>> view = HFModelView(model)
        >>> clean, perturbed = view.pair(batch, view.zeros(batch))
        >>> clean.shape == perturbed.shape
        True
    """

    def __init__(
        self,
        model: nn.Module,
        site: str = "tokens",
        label_smoothing: float = 0.0,
        loss_function: LossFunction | None = None,
        half: bool = False,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        compute_loss: ComputeLoss | None = None,
        means: bool = True,
        perturbs: bool = True,
    ) -> None:
        self.model = uncompiled(model)
        self._injected, self._site = model, site
        self.label_smoothing = label_smoothing
        self.loss_function = loss_function
        self.compute_loss: ComputeLoss = compute_loss or self._own_loss
        self.means = means and loss_function is None
        self._perturbs = perturbs
        if perturbs:
            self.injection  # its sites are found here and not in training  # noqa: B018
        self.context = context
        self.core = bare(model)
        self.prediction_head = Head(self.core)
        self._accepted = set(inspect.signature(self.core.forward).parameters)
        self._widths: dict[str, int] = {}
        self._other_layout = ""
        self.half = half
        self._inner_scale = _FIRST_INNER_SCALE
        self._random_state: list[Tensor] | None = None
        self.may_fuse = True
        self.has_fused = False  # in the step at hand
        self._last: TrainedPass | None = None
        self._said: set[str] = set()
        self._honours: bool | None = None
        if perturbs:
            require_non_reentrant(model)
        self.wrapped = model

    # ---- the model, as it is called

    @property
    def wrapped(self) -> nn.Module:
        """The model as it is trained: in DDP, compiled, or both."""
        return self._wrapped

    @wrapped.setter
    def wrapped(self, model: nn.Module) -> None:
        if model is getattr(self, "_wrapped", None):
            return
        self._wrapped = model
        self._quiet: nn.Module = (
            self.model
        )  # the model as it is called for a look: nothing is synchronised
        self._frozen: Callable[..., Any] | None = None
        self._replaced: Callable[..., Any] = partial(call_with, self.model)
        self._compiled = is_compiled(model)
        self._compiles_losses = self.prediction_head.compiles = False
        self._logits: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._layers: Callable[[], AbstractContextManager[Any]] = nullcontext
        if self._compiled:
            self._layers = (
                layers_kept if any(map(draws_in_vain, compiled_parts(model))) else nullcontext
            )
            if self._perturbs:
                self.injection.stay()
            self._compile_like(model)

    def _compile_like(self, model: nn.Module) -> None:
        """Compile what else is called with the backend and the options of a compiled model."""
        whole = next(
            (module for module in model.modules() if self._is_compiled_whole_in(module)), None
        )
        if whole is None:  # compiled in place, or in parts: those parts are called
            self._quiet = model if uncompiled(model) is self.model else self.model
            self._frozen = partial(call_constant, self._quiet)
            self._compiles_losses = self.prediction_head.compiles = True
            if self.means:
                self._logits = NarrowLogits(self.model, self.core).passing
            return
        compiler: Any = whole.dynamo_ctx
        self._quiet = whole if uncompiled(whole) is self.model else compiler(self.model)
        self._frozen = compiler(partial(call_frozen, self.model))
        self._replaced = compiler(self._replaced)

    def _is_compiled_whole_in(self, module: nn.Module) -> bool:
        return "dynamo_ctx" in vars(module) and any(
            part is self.model for part in uncompiled(module).modules()
        )

    def release(self) -> None:
        """Take the hooks off a compiled model, whose passes are not compiled from then on."""
        self.wrapped = self.model
        if self._perturbs:
            self.injection.leave()

    @cached_property
    def injection(self) -> Injection:
        """Where δ enters the model."""
        return Injection(self._injected, self._site)

    # ---- predictions

    def logits(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        return self._train_pass(batch, delta).logits()

    def loss_at(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        loss, self._last = self._train_pass(batch, delta, needs_logits=False).loss, None
        return loss

    def peek(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        return self._forward(self._quiet, batch, delta)

    def probe(self, batch: Batch, delta: Perturbation) -> Tensor:
        if (
            self._compiled and self.half
        ):  # its gradient may be taken twice, which compiled graphs do not allow
            with torch.compiler.set_stance("force_eager"):
                return self.peek(batch, delta)
        if (
            self._frozen is None or self.core.is_gradient_checkpointing
        ):  # recomputed when they are constants no more
            return self.peek(batch, delta)
        return self._forward(self._frozen, batch, delta)

    def pair(
        self,
        batch: Batch,
        delta: Perturbation | Cut | None,
        fuse: bool = True,
        both_losses: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if fuse and self.may_fuse and self._can_fuse(batch) and (self.means or not both_losses):
            try:
                made = self._train_pass(
                    batch, delta, doubled=not both_losses, both_losses=both_losses
                )
            except torch.OutOfMemoryError:
                if not self.unfuse():
                    raise
                made = self._train_pass(batch)
        else:
            made = self._train_pass(batch)
        if made.perturbed is not None:
            return made.logits(), made.perturbed
        # A second pass goes past the wrapper: DDP wants one wrapped forward per backward.
        if not both_losses:
            return made.logits(), self.peek(batch, delta)
        other = self._train_pass(batch, delta, model=self._quiet)
        made.loss, self._last = (made.loss + other.loss) / 2, made
        return made.logits(), other.logits()

    def _can_fuse(self, batch: Batch) -> bool:
        self._refuse_batch_statistics()
        return self.may_double(
            {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
        )

    def may_double(self, inputs: Mapping[str, Any], keeps_labels: bool = False) -> bool:
        """Whether a doubled pass is a valid one with the same loss; the log says once why not.

        Args:
            inputs: of the forward pass.
            keeps_labels: whether the labels are among them, for a loss that the model alone can
                compute.
        """
        if keeps_labels:
            reason: str | None = (
                f"{type(self.core).__name__} computes a loss that is not known to be a plain mean"
            )
        elif self.prediction_head.adds_router_loss(inputs):
            reason = "the router's loss covers all rows"
        else:
            reason = reason_against(inputs)
        if reason is not None and reason not in self._said:
            self._said.add(reason)
            logger.warning("clean and perturbed copies go in two passes: %s", reason)
        return reason is None

    def _train_pass(
        self,
        batch: Batch,
        delta: Perturbation | Cut | None = None,
        doubled: bool = False,
        both_losses: bool = False,
        model: nn.Module | None = None,
        needs_logits: bool = True,
    ) -> TrainedPass:
        """The pass through the wrapped model, or the one given, that computes the task loss."""
        if needs_logits and "labels" not in batch:
            raise refusal(
                "predictions", "the batches have no `labels`, which say what is predicted"
            )
        self._check_resolution(batch, delta)
        self._last = None  # its graph is not needed any more
        model = self.wrapped if model is None else model
        made = TrainedPass(
            self, batch, self._laid_out(delta, batch), doubled, both_losses, needs_logits
        )
        inputs = {
            name: value for name, value in batch.items() if name not in (SAMPLE_ID, ITEMS, PADDED)
        }
        inputs = twice(inputs) if both_losses else inputs
        with (
            self.context(),
            self._layers(),
            self._logits(),
            self._known(batch),
            made.watching(model),
        ):
            made.loss = self.compute_loss(model, inputs, batch, 1 + both_losses)
        made.require_made()
        self._last = made
        return made

    def _own_loss(
        self, model: nn.Module, inputs: dict[str, Any], batch: Batch, copies: int = 1
    ) -> Tensor:
        """The loss of a loop without a trainer."""
        items = None if batch.get(ITEMS) is None else batch[ITEMS] * copies
        if self.loss_function is not None or self.label_smoothing:
            labels = inputs.pop("labels")
            logits = prediction_of(model(**inputs))
            if self.loss_function is not None:
                return self.loss_function(logits, batch, self.items(batch))
            return self.prediction_head.loss(logits, labels, items, self.label_smoothing)
        output = model(
            **inputs if items is None or not self.takes_items else {**inputs, ITEMS: items}
        )
        loss: Tensor = output["loss"]
        return (
            loss
            if items is None or self.honours_items(batch)
            else loss * copies * self.count(batch) / items
        )

    @cached_property
    def takes_items(self) -> bool:
        """Whether the forward pass takes the number of items to divide the loss by."""
        kinds = inspect.signature(self.core.forward).parameters.values()
        default = any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in kinds)
        return bool(getattr(self.core, "accepts_loss_kwargs", default))

    @cached_property
    def _requires_labels(self) -> bool:
        labels = inspect.signature(self.core.forward).parameters.get("labels")
        return labels is not None and labels.default is inspect.Parameter.empty

    def honours_items(self, batch: Batch) -> bool:
        """Whether the loss of the forward pass is divided by a given number of items.

        Many models take the number and ignore it. One that is not known shows it on one batch,
        without a trace.
        """
        if self.prediction_head.computes(batch.get("labels")):
            return self.takes_items
        if self._honours is None:
            inputs = {
                name: value
                for name, value in batch.items()
                if name not in (SAMPLE_ID, ITEMS, PADDED)
            }
            with torch.no_grad(), kept_randomness(), self.evaluating(), self.context():
                items = torch.as_tensor(self.count(batch))
                losses = [
                    self._quiet(**inputs, **{ITEMS: items * times})["loss"] for times in (1, 2)
                ]
            self._honours = not bool(torch.isclose(losses[0], losses[1]))
        return self._honours

    def unfuse(self) -> bool:
        """From now on make two passes of a fused one, since memory ran out; false if that cannot
        help.

        Not with several processes: one that repeats a pass would wait for the others.
        """
        if not (self.may_fuse and self.has_fused) or torch.distributed.is_initialized():
            return False
        self.may_fuse = self.has_fused = False
        logger.warning(
            "out of memory in the fused pass; clean and perturbed copies go in two passes from now "
            "on"
        )
        return True

    def averaged(self, batch: Batch, parameters: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            self.reset_masks()
            inputs = self.inputs(batch)
            with self.context(), self._layers(), self._logits(), self._known(batch):
                output = self._replaced(dict(parameters), inputs)
        return prediction_of(output)

    def _forward(
        self, model: Callable[..., Any], batch: Batch, delta: Perturbation | Cut | None
    ) -> Tensor:
        self._check_resolution(batch, delta)
        self.reset_masks()
        inputs = self.inputs(batch)
        with (
            self.adding(self._laid_out(delta, batch)),
            self.context(),
            self._layers(),
            self._logits(),
            self._known(batch),
        ):
            return prediction_of(model(**inputs))

    def adding(self, delta: Perturbation | Cut | None) -> AbstractContextManager[None]:
        """Within, the one pass that is made has δ in its embeddings."""
        return nullcontext() if delta is None else self.injection.adding(delta)

    def _check_resolution(self, batch: Batch, delta: Perturbation | Cut | None) -> None:
        """Before a compiled pass, whose graph cannot look at values."""
        if self._compiled and isinstance(delta, Perturbation) and self.injection.unchecked():
            for stream, output in self.look(batch).items():
                self.injection.check_resolution(output, delta.values[stream], stream)

    def _laid_out(
        self, delta: Perturbation | Cut | None, batch: Batch
    ) -> Perturbation | Cut | None:
        """δ in the rows of the batch, which may hold several documents each."""
        documents = None if delta is None else self._documents(batch)
        return delta if delta is None or documents is None else documents.packed(delta)

    def _documents(self, batch: Batch) -> Documents | None:
        return None if self.is_encoder_decoder else Documents.of(batch)

    def _known(self, batch: Batch) -> AbstractContextManager[None]:
        """Tells the pass what the host knows of its masks; a compiler of whole passes looks into
        none.
        """
        padded = batch.get(PADDED)
        if padded is None or (self._compiled and not self._compiles_losses):
            return nullcontext()
        return known_padding(padded, self.is_encoder_decoder)

    def inputs(self, batch: Batch, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the model's forward takes to predict; labels stay out, so that it computes no loss.

        Args:
            batch: the batch.
            given: what a loss function gives the model of it; by default everything for the model.
        """
        given = batch if given is None else given
        inputs = {name: value for name, value in given.items() if name not in _NOT_FOR_THE_MODEL}
        if self.is_encoder_decoder and "decoder_input_ids" not in inputs and not self.reads_twice:
            inputs["decoder_input_ids"] = decoder_inputs(self.core, batch["labels"])
        if "use_cache" in self._accepted:
            inputs.setdefault("use_cache", False)
        return inputs

    # ---- losses

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        made, self._last = self._last, None  # or its graph would outlive the step
        if made is None or made.clean is not logits:
            raise ValueError(
                "the task loss belongs to the last trained pass: call loss() once, with its logits"
            )
        return made.loss

    def divergence(
        self,
        clean: Tensor,
        perturbed: Tensor,
        batch: Batch,
        kind: Divergence,
        detach_clean: bool = False,
    ) -> Tensor:
        return self.prediction_head.divergence(
            clean, perturbed, batch.get("labels"), kind, detach_clean
        )

    def items(self, batch: Batch) -> Tensor:
        given = batch.get(ITEMS)
        return (
            self.count(batch)
            if given is None
            else torch.as_tensor(given, device=batch["labels"].device)
        )

    def count(self, batch: Batch) -> Tensor:
        """Samples (classification, regression) or target tokens of this batch alone."""
        return self.prediction_head.count(batch["labels"])

    def prediction(self, logits: Tensor, batch: Batch) -> Prediction:
        return self.prediction_head.prediction(logits, batch.get("labels"))

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.prediction_head.targets(batch["labels"])

    # ---- perturbations

    def zeros(self, batch: Batch) -> Perturbation:
        masks = self.masks(batch)
        wide = (
            torch.float64 if next(self.core.parameters()).dtype == torch.float64 else torch.float32
        )
        return Perturbation.zeros(masks, self.widths(batch), wide)

    def widths(self, batch: Batch) -> dict[str, int]:
        """Width D of the embeddings of each stream; the first call also proves that δ reaches every
        stream.
        """
        if not self._widths:
            seen = self.look(batch)
            self._other_layout = self._layout_of(batch, seen)
            self._widths = {stream: output.shape[-1] for stream, output in seen.items()}
        return self._widths

    def _layout_of(self, batch: Batch, seen: Mapping[str, Tensor]) -> str:
        """What is unusual about embeddings that are not (B, T, D) for token ids (B, T); empty if
        they are.
        """
        inputs = self.inputs(batch)
        for stream, output in seen.items():
            read = inputs.get("decoder_input_ids") if stream == "decoder" else None
            shape = tuple((inputs["input_ids"] if read is None else read).shape)
            if tuple(output.shape[:-1]) != shape:
                return f"{type(self.core).__name__} has embeddings {tuple(output.shape)} for token ids {shape}"
        return ""

    def gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        try:
            return self._scaled_gradient(objective, delta)
        except RuntimeError as error:
            if "checkpoint" in str(error).lower():
                raise CheckpointingError("; ".join(_REENTRANT)) from error
            raise

    def _scaled_gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        """In float16 the objective is scaled up against underflow, and less so once that
        overflows.
        """
        if not self.half:
            return input_gradient(objective, delta)
        while True:
            scaled = input_gradient(objective * self._inner_scale, delta, retain_graph=True)
            gradient = scaled.map(lambda values, _: values / self._inner_scale)
            if self._inner_scale <= 1 or all(
                bool(torch.isfinite(value).all()) for value in gradient.values.values()
            ):
                return gradient
            self._inner_scale /= 16

    def masks(self, batch: Batch) -> dict[str, Tensor]:
        """Real tokens of each stream, (B, T)."""
        self.widths(batch)
        if self._other_layout:
            raise refusal(
                "perturbation", self._other_layout, "name a module that outputs (B, T, D) as site="
            )
        return {stream: mask for stream, (_, mask) in self.tokens(batch).items()}

    def tokens(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Token ids and mask of real tokens of each stream, (B, T) each."""
        inputs = self.inputs(batch)
        if not self.is_encoder_decoder:
            documents = self._documents(batch)
            if documents is not None:
                return {"tokens": (documents.apart(inputs["input_ids"]), documents.mask)}
            return {"tokens": (inputs["input_ids"], self._real(inputs))}
        targets: Tensor | None = inputs.get("decoder_input_ids")
        if targets is None:
            targets = decoder_inputs(self.core, inputs["input_ids"])
        return {
            "encoder": (inputs["input_ids"], self._real(inputs)),
            "decoder": (targets, self._real_target(inputs, batch)),
        }

    def _real(self, inputs: Mapping[str, Any]) -> Tensor:
        mask: Tensor | None = inputs.get("attention_mask")
        ids: Tensor = inputs["input_ids"]
        if mask is not None and mask.dim() == 2:
            return mask.bool()
        pad = getattr(self.core.config, "pad_token_id", None)
        return torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad

    def _real_target(self, inputs: Mapping[str, Any], batch: Batch) -> Tensor:
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
        real: Tensor = ids != self.core.config.pad_token_id
        real[:, 0] = True  # the start token may be the padding token
        return real

    def sample_ids(self, batch: Batch) -> Tensor:
        if SAMPLE_ID not in batch:
            raise KeyError(
                f"the batch has no '{SAMPLE_ID}', which this method needs to remember samples; "
                "train with AdversarialTrainer, advreg.attach or advreg.prepare"
            )
        ids: Tensor = batch[SAMPLE_ID]
        return ids

    def look(self, batch: Batch) -> dict[str, Tensor]:
        """The unperturbed embeddings each stream's δ is added to, by one silent pass that leaves no
        trace.
        """
        inputs = self.inputs(batch)
        if self._requires_labels:
            inputs["labels"] = batch["labels"]
        with torch.no_grad(), kept_randomness(), self.evaluating(), self.context():  # noqa: SIM117
            with self.injection.watching() as seen:
                self.model(**inputs)
        return seen

    def part(self, batch: Batch, rows: slice) -> dict[str, Any]:
        size = rows_of(batch)
        return {
            name: value[rows] if is_per_sample(value, size) else value
            for name, value in batch.items()
        }

    # ---- gradients, dropout and parameters

    def accumulating(self) -> AbstractContextManager[None]:
        # DDP has it; FSDP exchanges in each pass, for what it would keep until the last is what it
        # is there to save
        context: AbstractContextManager[None] = getattr(self.wrapped, "no_sync", nullcontext)()
        return context

    @contextmanager
    def dropout(self, mode: Dropout) -> Iterator[None]:
        if mode == "off":
            with self.evaluating():
                yield
        elif mode == "shared":
            self._random_state = random_states()
            try:
                yield
            finally:
                self._random_state = None
        else:
            yield

    def reset_masks(self) -> None:
        """With shared masks every pass starts from the random state the first one started from."""
        if self._random_state is not None:
            set_random_states(self._random_state)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout off inside; afterwards every module's ``training`` flag is what it was."""
        flags = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, training in flags.items():
                module.training = training

    def parameters(self) -> Mapping[str, Tensor]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def has_dropout(self) -> bool:
        return has_dropout(self.model)

    def head(self) -> nn.Linear:
        prefix = f"{self.core.base_model_prefix}."
        shared = self.core.get_input_embeddings().weight
        linears = [
            module
            for name, module in self.core.named_modules()
            if isinstance(module, nn.Linear)
            and not name.startswith(prefix)
            and module.weight is not shared
        ]
        if not linears:
            raise ValueError(
                f"spectral must be off for {type(self.core).__name__}: its head is tied to the "
                "embeddings or missing"
            )
        return linears[-1]

    @cached_property
    def is_encoder_decoder(self) -> bool:
        return has_decoder(self.core)

    @property
    def reads_twice(self) -> bool:
        """Whether this is a classifier whose decoder reads the text again; the model shifts the
        text itself.
        """
        return self.is_encoder_decoder and "Classification" in type(self.core).__name__

    @cached_property
    def _batch_norms(self) -> dict[str, nn.Module]:
        kind = nn.modules.batchnorm._BatchNorm
        return {
            name: module for name, module in self.core.named_modules() if isinstance(module, kind)
        }

    def _refuse_batch_statistics(self) -> None:
        for name, module in self._batch_norms.items():
            if module.training:
                raise ValueError(
                    f"fuse must be off for this model: '{name}' takes statistics over the batch, "
                    "and the fused pass "
                    "would mix clean and perturbed samples in them"
                )


_REENTRANT = (
    "reentrant gradient checkpointing cannot be differentiated with respect to the perturbation",
    "call model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': "
    "False}), or set "
    "gradient_checkpointing_kwargs={'use_reentrant': False} in TrainingArguments",
)


def require_non_reentrant(model: nn.Module) -> None:
    """Refuse reentrant gradient checkpointing before the first step."""
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            keywords = getattr(module._gradient_checkpointing_func, "keywords", {})
            if keywords.get("use_reentrant", True):  # torch's own default is reentrant
                raise CheckpointingError(str(refusal("perturbation", *_REENTRANT)))


def call_frozen(model: nn.Module, **inputs: Any) -> Any:
    """The model's output, of which no parameter has a gradient; for a compiler to trace.

    A compiled backward pass computes all gradients that its graph has, whichever are asked for; in
    this graph δ is the only thing to differentiate by. The parameters' own flags are not touched.
    """
    return call_with(
        model, {name: value.detach() for name, value in model.named_parameters()}, inputs
    )


def call_constant(model: nn.Module, **inputs: Any) -> Any:
    """What :func:`call_frozen` gives, of a model whose parts are compiled; the host need not look
    up every name.
    """
    with constant_parameters(model):
        return model(**inputs)


@contextmanager
def constant_parameters(model: nn.Module) -> Iterator[None]:
    """Inside, each parameter is a constant that shares its memory, in all the places where it is
    used.
    """
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (module._parameters, name, value)
        for module in model.modules()
        for name, value in module._parameters.items()
        if value is not None
    ]
    constants = {value: value.detach() for _, _, value in places}
    try:
        for parameters, name, value in places:
            parameters[name] = constants[value]
        yield
    finally:
        for parameters, name, value in places:
            parameters[name] = value


def call_with(model: nn.Module, parameters: dict[str, Tensor], inputs: dict[str, Any]) -> Any:
    """The model's output with other values of some of its parameters."""
    return torch.func.functional_call(model, parameters, (), inputs)


def decoder_inputs(core: Any, labels: Tensor) -> Tensor:
    """What a decoder reads when it is to predict these labels: the start token, then each label but
    the last.
    """
    if hasattr(core, "prepare_decoder_input_ids_from_labels"):
        prepared: Tensor = core.prepare_decoder_input_ids_from_labels(labels=labels)
        return prepared
    pad = core.config.pad_token_id
    start = getattr(core.config, "decoder_start_token_id", None)
    shifted = F.pad(labels[:, :-1], (1, 0), value=pad if start is None else start)
    return shifted.masked_fill(shifted == IGNORED, pad)


def real_behind(real: Tensor) -> Tensor:
    """Real positions of a decoder that reads a text one step behind, (B, T): start token, then all
    tokens but the last.

    The last token of a text fits in only if padding follows, and comes after the position that the
    head reads. It is left out of every text, so that a text of n tokens has n positions whatever
    the padding.
    """
    to_come = real.flip(1).cumsum(1).flip(1)  # real tokens from here on
    return F.pad((real & (to_come > 1))[:, :-1], (1, 0), value=True)
