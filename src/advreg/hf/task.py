"""A Hugging Face model as a :class:`~advreg.methods.base.Task`: predictions, losses and gradients of a batch."""

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
from advreg.core.divergence import Divergence, Prediction, divergence, widen
from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.compiling import compiled
from advreg.hf.drops import has_dropout
from advreg.hf.injection import Injection, bare, compiled_parts, is_compiled, uncompiled
from advreg.hf.layerdrop import draws_in_vain, layers_kept
from advreg.hf.masks import PADDED, known_padding
from advreg.hf.narrow import NarrowLogits
from advreg.hf.randomness import kept_randomness, random_states, set_random_states
from advreg.methods.base import Batch, Dropout

SAMPLE_ID = "sample_id"
ITEMS = "num_items_in_batch"
IGNORED = -100

_NOT_FOR_THE_MODEL = ("labels", SAMPLE_ID, ITEMS)
_FIRST_INNER_SCALE = 2.0**16
_VOCABULARY = 1024  # classes

logger = logging.getLogger(__name__)

LossFunction = Callable[[Tensor, Batch, Tensor], Tensor]


class CheckpointingError(RuntimeError):
    """Reentrant gradient checkpointing cannot be differentiated with respect to δ."""


class ModelTask:
    """Any Hugging Face model with a classification, regression, sequence-to-sequence or language-modelling head.

    Args:
        model: the model, bare or wrapped by PEFT, or what ``torch.compile`` made of it.
        site: where δ is added; see :func:`advreg.hf.injection.find_sites`.
        label_smoothing: of the task's cross-entropy.
        loss_function: replaces the task loss; called with logits, batch and the denominator.
        half: is the model run in float16, so that the inner objective must be scaled against underflow?
        context: entered around every pass, for autocast.

    A batch is the mapping a data loader yields: the model's inputs with ``labels``; ``sample_id`` for methods that
    remember samples; ``num_items_in_batch`` if the loss is to be divided by more than this batch's own items;
    ``padded``, what :func:`advreg.hf.masks.padding_of` says of it, so that no pass waits for a GPU to tell.

    Of a compiled model every pass is compiled, and the hooks that add δ are put on when the task is made, before the
    model is traced, and stay until :meth:`release`. With ``mode="reduce-overhead"``, call
    ``torch.compiler.cudagraph_mark_step_begin()`` before each optimizer step's first pass: predictions must outlive
    the passes that follow them.
    """

    def __init__(
        self,
        model: nn.Module,
        site: str = "tokens",
        label_smoothing: float = 0.0,
        loss_function: LossFunction | None = None,
        half: bool = False,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model = uncompiled(model)
        self.injection = Injection(model, site)
        self.label_smoothing = label_smoothing
        self.loss_function = loss_function
        self.context = context
        self._core = bare(model)
        self._accepted = set(inspect.signature(self._core.forward).parameters)
        self._widths: dict[str, int] = {}
        self.half = half
        self._inner_scale = _FIRST_INNER_SCALE
        self._random_state: list[Tensor] | None = None
        self.may_fuse = True
        self.has_fused = False  # in the step at hand
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
        self._quiet: nn.Module = self.model  # the model as it is called for a look: nothing is synchronised
        self._frozen: Callable[..., Any] | None = None
        self._replaced: Callable[..., Any] = partial(call_with, self.model)
        self._compiled = is_compiled(model)
        self._compiles_losses = False
        self._logits: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._layers: Callable[[], AbstractContextManager[Any]] = nullcontext
        if self._compiled:
            self._layers = layers_kept if any(map(draws_in_vain, compiled_parts(model))) else nullcontext
            self.injection.stay()
            self._compile_like(model)

    def _compile_like(self, model: nn.Module) -> None:
        """Compile what else is called with the backend and the options of a compiled model."""
        whole = next((module for module in model.modules() if self._is_compiled_whole_in(module)), None)
        if whole is None:  # compiled in place, or in parts: those parts are called
            self._quiet = model if uncompiled(model) is self.model else self.model
            self._frozen = partial(call_constant, self._quiet)
            self._compiles_losses = True
            if self.loss_function is None:  # which may not widen what it reads
                self._logits = NarrowLogits(self.model, self._core).passing
            return
        compiler: Any = whole.dynamo_ctx
        self._quiet = whole if uncompiled(whole) is self.model else compiler(self.model)
        self._frozen = compiler(partial(call_frozen, self.model))
        self._replaced = compiler(self._replaced)

    def _is_compiled_whole_in(self, module: nn.Module) -> bool:
        return "dynamo_ctx" in vars(module) and any(part is self.model for part in uncompiled(module).modules())

    def release(self) -> None:
        """Take the hooks off a compiled model, whose passes are not compiled from then on."""
        self.wrapped = self.model
        self.injection.leave()

    # ---- predictions

    def logits(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        return self._forward(self.wrapped, self._inputs(batch), delta)

    def peek(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        return self._forward(self._quiet, self._inputs(batch), delta)

    def probe(self, batch: Batch, delta: Perturbation) -> Tensor:
        if self._compiled and self.half:  # its gradient may be taken twice, which compiled graphs do not allow
            with torch.compiler.set_stance("force_eager"):
                return self.peek(batch, delta)
        if self._frozen is None or self._core.is_gradient_checkpointing:  # recomputed when they are constants no more
            return self.peek(batch, delta)
        return self._forward(self._frozen, self._inputs(batch), delta)

    def pair(self, batch: Batch, delta: Perturbation | Cut | None, fuse: bool = True) -> tuple[Tensor, Tensor]:
        if fuse and self.may_fuse:
            self.has_fused = True
            try:
                return self._fused(batch, delta)
            except torch.OutOfMemoryError:
                if not self.unfuse():
                    raise
        # Only the second pass goes through the wrapper: DDP wants one wrapped forward per backward.
        return self.peek(batch), self.logits(batch, delta)

    def _fused(self, batch: Batch, delta: Perturbation | Cut | None) -> tuple[Tensor, Tensor]:
        self._refuse_batch_statistics()
        both = self._forward(self.wrapped, twice(self._inputs(batch)), delta and delta.above_zeros())
        clean, perturbed = both.chunk(2)
        return clean, perturbed

    def unfuse(self) -> bool:
        """From now on make two passes of a fused one, since memory ran out; false if that cannot help.

        Not with several processes: one that repeats a pass would wait for the others.
        """
        if not (self.may_fuse and self.has_fused) or torch.distributed.is_initialized():
            return False
        self.may_fuse = self.has_fused = False
        logger.warning("out of memory in the fused pass; clean and perturbed copies go in two passes from now on")
        return True

    def averaged(self, batch: Batch, parameters: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            self._reset_masks()
            with self.context(), self._layers(), self._logits(), self._known(inputs := self._inputs(batch)):
                output = self._replaced(dict(parameters), inputs)
        return prediction_of(output)

    def _forward(self, model: Callable[..., Any], inputs: dict[str, Any], delta: Perturbation | Cut | None) -> Tensor:
        if self._compiled and isinstance(delta, Perturbation) and self.injection.unchecked():
            for stream, output in self._look(inputs).items():
                self.injection.check_resolution(output, delta.values[stream], stream)
        self._reset_masks()
        with self.injection.adding(delta), self.context(), self._layers(), self._logits(), self._known(inputs):
            return prediction_of(model(**inputs))

    def _known(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Takes from the inputs what the host knows of their masks; a compiler of whole passes looks into none."""
        padded = inputs.pop(PADDED, None)
        if padded is None or (self._compiled and not self._compiles_losses):
            return nullcontext()
        return known_padding(padded, self.is_encoder_decoder)

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model's forward takes; labels stay out, so that the model computes no loss of its own."""
        inputs = {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
        if self.is_encoder_decoder and "decoder_input_ids" not in inputs:
            # a classifier's decoder reads the text once more
            targets = batch["input_ids" if "Classification" in type(self._core).__name__ else "labels"]
            inputs["decoder_input_ids"] = decoder_inputs(self._core, targets)
        if "use_cache" in self._accepted:
            inputs.setdefault("use_cache", False)
        return inputs

    # ---- losses

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.loss_function is not None:
            return self.loss_function(logits, batch, self.items(batch))
        kind = self.prediction(logits, batch)
        logits, labels = self._aligned(logits, batch)
        if kind == "value":
            total = (widen(logits).reshape(labels.shape) - labels.to(widen(logits).dtype)).square().sum()
        elif kind == "labels":
            total = F.binary_cross_entropy_with_logits(widen(logits), labels.to(widen(logits).dtype), reduction="sum")
        else:
            total = self._over_logits(cross_entropy, logits)(
                logits.flatten(0, -2), labels.flatten(), self.label_smoothing
            )
        return total / self.items(batch)

    def mean_loss(self, clean: Tensor, perturbed: Tensor, batch: Batch) -> Tensor:
        return (self.loss(clean, batch) + self.loss(perturbed, batch)) / 2

    def divergence(
        self, clean: Tensor, perturbed: Tensor, batch: Batch, kind: Divergence, detach_clean: bool = False
    ) -> Tensor:
        prediction = self.prediction(clean, batch)
        measure = self._over_logits(divergence, clean)
        rows = clean.flatten(0, -2), perturbed.flatten(0, -2)
        moved = measure(*rows, kind, prediction, detach_clean).view(clean.shape[:-1])  # (B,) or (B, T)
        if prediction != "classes" or "labels" not in batch:
            return moved.sum()
        moved, labels = self._aligned(moved, batch)
        return moved.masked_fill(labels == IGNORED, 0.0).sum()

    def _over_logits(self, function: Callable[..., Tensor], logits: Tensor) -> Callable[..., Tensor]:
        """The function, compiled if layers are, where a pass over the logits of a vocabulary costs something."""
        return compiled(function) if self._compiles_losses and logits.shape[-1] >= _VOCABULARY else function

    def items(self, batch: Batch) -> Tensor:
        given = batch.get(ITEMS)
        return self.count(batch) if given is None else torch.as_tensor(given, device=batch["labels"].device)

    def count(self, batch: Batch) -> Tensor:
        """Samples (classification, regression) or target tokens of this batch alone."""
        labels: Tensor = batch["labels"]
        if labels.is_floating_point():
            return torch.tensor(labels.numel(), device=labels.device)  # −100.0 is a value like any other
        labels = labels[:, 1:] if self.predicts_next else labels
        return (labels != IGNORED).sum().clamp_min(1)

    def prediction(self, logits: Tensor, batch: Batch) -> Prediction:
        """What the head predicts, told as Hugging Face models do: ``problem_type``, else the labels' type."""
        problem = getattr(self._core.config, "problem_type", None)
        if logits.dim() == 2 and problem is None and "labels" in batch:
            if logits.shape[-1] == 1:
                problem = "regression"
            elif batch["labels"].is_floating_point():
                problem = "multi_label_classification"
        if problem == "regression":
            return "value"
        return "labels" if problem == "multi_label_classification" else "classes"

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        labels: Tensor = batch["labels"]
        if labels.is_floating_point():
            return labels, torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        _, labels = self._aligned(labels, batch)
        return labels, labels != IGNORED

    def _aligned(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Predictions beside the labels they are for: a causal language model predicts at t the token at t + 1."""
        labels: Tensor = batch["labels"]
        if self.predicts_next:  # not the logits are moved, which would have to be copied
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return predictions, labels

    # ---- perturbations

    def zeros(self, batch: Batch) -> Perturbation:
        masks = self.masks(batch)
        wide = torch.float64 if next(self._core.parameters()).dtype == torch.float64 else torch.float32
        return Perturbation.zeros(masks, self.widths(batch), wide)

    def widths(self, batch: Batch) -> dict[str, int]:
        """Width D of the embeddings of each stream; the first call also proves that δ reaches every stream."""
        if not self._widths:
            self._widths = {stream: output.shape[-1] for stream, output in self.look(batch).items()}
        return self._widths

    def gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        try:
            return self._scaled_gradient(objective, delta)
        except RuntimeError as error:
            if "checkpoint" in str(error).lower():
                raise CheckpointingError(_REENTRANT) from error
            raise

    def _scaled_gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        """In float16 the objective is scaled up against underflow, and less so once that overflows."""
        if not self.half:
            return input_gradient(objective, delta)
        while True:
            scaled = input_gradient(objective * self._inner_scale, delta, retain_graph=True)
            gradient = scaled.map(lambda values, _: values / self._inner_scale)
            if self._inner_scale <= 1 or all(bool(torch.isfinite(value).all()) for value in gradient.values.values()):
                return gradient
            self._inner_scale /= 16

    def masks(self, batch: Batch) -> dict[str, Tensor]:
        """Real tokens of each stream, (B, T)."""
        return {stream: mask for stream, (_, mask) in self.tokens(batch).items()}

    def tokens(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Token ids and mask of real tokens of each stream, (B, T) each."""
        inputs = self._inputs(batch)
        if not self.is_encoder_decoder:
            return {"tokens": (inputs["input_ids"], self._real(inputs))}
        return {
            "encoder": (inputs["input_ids"], self._real(inputs)),
            "decoder": (inputs["decoder_input_ids"], self._real_target(inputs, batch)),
        }

    def _real(self, inputs: Mapping[str, Any]) -> Tensor:
        mask: Tensor | None = inputs.get("attention_mask")
        ids: Tensor = inputs["input_ids"]
        if mask is not None and mask.dim() == 2:
            return mask.bool()
        pad = getattr(self._core.config, "pad_token_id", None)
        return torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad

    def _real_target(self, inputs: Mapping[str, Any], batch: Batch) -> Tensor:
        """Decoder inputs run one step behind the labels, so position t is real where there is a label at t."""
        given: Tensor | None = inputs.get("decoder_attention_mask")
        if given is not None:
            return given.bool()
        ids: Tensor = inputs["decoder_input_ids"]
        labels: Tensor | None = batch.get("labels")
        if labels is not None and labels.shape == ids.shape:
            return labels != IGNORED
        real: Tensor = ids != self._core.config.pad_token_id
        real[:, 0] = True  # the start token may be the padding token
        return real

    def sample_ids(self, batch: Batch) -> Tensor:
        if SAMPLE_ID not in batch:
            raise KeyError(
                f"the batch has no '{SAMPLE_ID}', which this method needs to remember samples; wrap the dataset in "
                "advreg.Identified and the collator in advreg.IdCollator, or use AdversarialTrainer"
            )
        ids: Tensor = batch[SAMPLE_ID]
        return ids

    def look(self, batch: Batch) -> dict[str, Tensor]:
        """The unperturbed embeddings each stream's δ is added to, by one silent pass that leaves no trace."""
        return self._look(self._inputs(batch))

    def _look(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        inputs = {name: value for name, value in inputs.items() if name != PADDED}
        with torch.no_grad(), kept_randomness(), self.evaluating(), self.context():  # noqa: SIM117
            with self.injection.watching() as seen:
                self.model(**inputs)
        return seen

    def part(self, batch: Batch, rows: slice) -> dict[str, Any]:
        size = batch["input_ids"].shape[0]
        return {name: value[rows] if is_per_sample(value, size) else value for name, value in batch.items()}

    # ---- gradients, dropout and parameters

    def accumulating(self) -> AbstractContextManager[None]:
        # DDP has it; FSDP exchanges in each pass, for what it would keep until the last is what it is there to save
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

    def _reset_masks(self) -> None:
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
        prefix = f"{self._core.base_model_prefix}."
        shared = self._core.get_input_embeddings().weight
        linears = [
            module
            for name, module in self._core.named_modules()
            if isinstance(module, nn.Linear) and not name.startswith(prefix) and module.weight is not shared
        ]
        if not linears:
            raise ValueError(
                f"spectral must be off for {type(self._core).__name__}: its head is tied to the embeddings or missing"
            )
        return linears[-1]

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self._core.config, "is_encoder_decoder", False))

    @cached_property
    def predicts_next(self) -> bool:
        """Is this a causal language model, whose logits at t predict the token at t + 1?"""
        return not self.is_encoder_decoder and bool(self._core.can_generate())

    @cached_property
    def _batch_norms(self) -> dict[str, nn.Module]:
        kind = nn.modules.batchnorm._BatchNorm
        return {name: module for name, module in self._core.named_modules() if isinstance(module, kind)}

    def _refuse_batch_statistics(self) -> None:
        for name, module in self._batch_norms.items():
            if module.training:
                raise ValueError(
                    f"fuse must be off for this model: '{name}' takes statistics over the batch, and the fused pass "
                    "would mix clean and perturbed samples in them"
                )


_REENTRANT = (
    "reentrant gradient checkpointing cannot be differentiated with respect to the perturbation; call "
    "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}), or set "
    "gradient_checkpointing_kwargs={'use_reentrant': False} in TrainingArguments"
)


def require_non_reentrant(model: nn.Module) -> None:
    """Refuse reentrant gradient checkpointing before the first step."""
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            keywords = getattr(module._gradient_checkpointing_func, "keywords", {})
            if keywords.get("use_reentrant", True):  # torch's own default is reentrant
                raise CheckpointingError(_REENTRANT)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """The sum over items of −log p(label), smoothed; (N, C), (N,) → (); ignored labels left out."""
    return F.cross_entropy(
        widen(logits), labels, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )


def call_frozen(model: nn.Module, **inputs: Any) -> Any:
    """The model's output, of which no parameter has a gradient; for a compiler to trace.

    A compiled backward pass computes all gradients that its graph has, whichever are asked for; in this graph δ is
    the only thing to differentiate by. The parameters' own flags are not touched.
    """
    return call_with(model, {name: value.detach() for name, value in model.named_parameters()}, inputs)


def call_constant(model: nn.Module, **inputs: Any) -> Any:
    """What :func:`call_frozen` gives, of a model whose parts are compiled; the host need not look up every name."""
    with constant_parameters(model):
        return model(**inputs)


@contextmanager
def constant_parameters(model: nn.Module) -> Iterator[None]:
    """Inside, each parameter is a constant that shares its memory, in all the places where it is used."""
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


def prediction_of(output: Any) -> Tensor:
    """The logits of a model's output."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model must output `logits`, got {type(output).__name__} "
            f"with {list(getattr(output, 'keys', list)())}; "
            "use a model with a classification, regression, sequence-to-sequence or language-modelling head"
        )
    return logits


def decoder_inputs(core: Any, labels: Tensor) -> Tensor:
    """What a decoder reads when it is to predict these labels: the start token, then each label but the last."""
    if hasattr(core, "prepare_decoder_input_ids_from_labels"):
        prepared: Tensor = core.prepare_decoder_input_ids_from_labels(labels=labels)
        return prepared
    start, pad = core.config.decoder_start_token_id, core.config.pad_token_id
    shifted = F.pad(labels[:, :-1], (1, 0), value=start)
    return shifted.masked_fill(shifted == IGNORED, pad)


def twice(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch followed by itself."""
    size = inputs["input_ids"].shape[0]
    return {name: torch.cat([value, value]) if is_per_sample(value, size) else value for name, value in inputs.items()}


def is_per_sample(value: Any, size: int) -> bool:
    """Does a batch's entry have a row for each sample?"""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size
