"""The prediction head of a model: what it predicts, and the loss of its own forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from advreg.core.divergence import Prediction, widen
from advreg.hf.patches.compile_layers import compiled
from advreg.hf.view.injection import has_decoder
from advreg.methods.base import Batch

IGNORED = -100

_VOCABULARY = 1024  # least number of classes for which a loss is compiled
_ONE_LABEL_EACH = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForNextSentencePrediction",
)
_CROSS_ENTROPIES = {"CrossEntropyLoss", "cross_entropy", "loss_function"}


class Head:
    """What a model's logits mean.

    Args:
        core: the Hugging Face model without wrappers.
    """

    def __init__(self, core: PreTrainedModel) -> None:
        self._core = core
        self._has_decoder = has_decoder(core)
        self.compiles = False  # whether losses over a vocabulary are compiled

    # ---- the loss of the forward pass

    def computes(self, labels: Tensor | None) -> bool:
        """Whether the forward pass computes :meth:`loss` from these labels.

        True for the heads of transformers whose forward pass ends in a plain mean over labels. Then
        advreg can keep the labels out of a doubled pass and compute the loss of the clean half. Any
        other model computes its own.
        """
        if not isinstance(labels, Tensor) or self.adds_router_loss() or not self._has_plain_loss:
            return False
        has_soft_labels = {"log_softmax", "LogSoftmax"} & self._names  # DeBERTa
        return not (labels.is_floating_point() and has_soft_labels)

    @property
    def ignores_items(self) -> bool:
        """Whether a model of transformers accepts a number of items, but averages its loss."""
        return self._has_plain_loss and (
            "loss_function" not in self._names
            or type(self._core).__name__.endswith("ForSequenceClassification")
        )

    @cached_property
    def _has_plain_loss(self) -> bool:
        if not self._is_original or not _CROSS_ENTROPIES & self._names:
            return False
        if self._has_decoder:
            return (
                "loss_function" not in self._names
                or self._core.loss_function is not ForCausalLMLoss
            )
        if self.shifts:
            return "loss_function" in self._names  # other models expect shifted labels
        return type(self._core).__name__.endswith(_ONE_LABEL_EACH)

    @cached_property
    def _is_original(self) -> bool:
        """Whether forward pass and loss function are from transformers, or equivalents of liger."""
        replaced = "_loss_function" in vars(self._core) or _patched(self._core)
        own_loss = getattr(type(self._core), "loss_function", None) is PreTrainedModel.loss_function
        return (
            own_loss
            and not replaced
            and _forward_of(self._core).__module__.startswith(("transformers.", "liger_"))
        )

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names that the forward pass looks up."""
        code = getattr(_forward_of(self._core), "__code__", None)
        return frozenset(getattr(code, "co_names", ()))

    def adds_router_loss(self, inputs: Batch | None = None) -> bool:
        """Whether a pass with these inputs adds the router loss of a mixture of experts."""
        config = self._core.config
        requested = (inputs or {}).get("output_router_logits")
        return bool(requested) or any(
            getattr(part, "output_router_logits", False)
            for part in (config, getattr(config, "text_config", None))
        )

    @cached_property
    def shifts(self) -> bool:
        """Whether logits at t predict the label at t + 1, as in a causal language model."""
        core = self._core
        return not self._has_decoder and bool(getattr(core, "can_generate", bool)())

    # ---- losses

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        items: Tensor | int | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """The sum of the losses of all items, divided by ``items`` or by their number."""
        kind = self.prediction(logits, labels)
        aligned = self.aligned(logits, labels)
        items = counted(aligned) if items is None else items
        if kind == "classes":
            measure = self.over(cross_entropy, logits)
            return measure(logits.flatten(0, -2), aligned.flatten(), smoothing) / items
        logits = widen(logits)
        aligned = aligned.to(logits.dtype)
        if kind == "labels":
            return F.binary_cross_entropy_with_logits(logits, aligned, reduction="sum") / items
        return (logits.reshape(aligned.shape) - aligned).square().sum() / items

    def prediction(self, logits: Tensor, labels: Tensor | None) -> Prediction:
        """What the head predicts: by ``problem_type``, else by the type of the labels.

        This is the rule of transformers.
        """
        problem = getattr(self._core.config, "problem_type", None)
        if logits.dim() == 2 and problem is None and labels is not None:
            if logits.shape[-1] == 1:
                problem = "regression"
            elif labels.is_floating_point():
                problem = "multi_label_classification"
        if problem == "regression":
            return "value"
        return "labels" if problem == "multi_label_classification" else "classes"

    def aligned(self, predictions: Tensor, labels: Tensor) -> Tensor:
        """The labels of predictions, position by position.

        Virtual tokens of prompt tuning come first and have no labels.
        """
        if (
            labels.dim() > 1
            and not labels.is_floating_point()
            and predictions.shape[1] > labels.shape[1]
        ):
            labels = F.pad(labels, (predictions.shape[1] - labels.shape[1], 0), value=IGNORED)
        if self.shifts:  # the labels move, because moving the logits would copy them
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return labels

    def over(self, function: Callable[..., Tensor], logits: Tensor) -> Callable[..., Tensor]:
        """A loss of logits, compiled where it is worth it."""
        return compiled(function) if self.compiles and logits.shape[-1] >= _VOCABULARY else function


def counted(labels: Tensor) -> Tensor:
    """Number of labels that count, at least 1.

    In a regression all of them count: −100.0 is a value like any other.
    """
    if labels.is_floating_point():
        return torch.tensor(labels.numel(), device=labels.device)
    return (labels != IGNORED).sum().clamp_min(1)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """The sum of −log p(label), smoothed, without ignored labels; (N, C), (N,) → ()."""
    return F.cross_entropy(
        widen(logits),
        labels,
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def _forward_of(core: PreTrainedModel) -> Any:
    return inspect.unwrap(type(core).forward)


def _patched(core: PreTrainedModel) -> bool:
    """Whether the forward pass of this instance was replaced.

    The wrappers of accelerate, TRL and liger do not change its loss.
    """
    forward = vars(core).get("forward")
    module = getattr(inspect.unwrap(forward), "__module__", "") if forward is not None else ""
    return forward is not None and not module.startswith(
        ("transformers.", "accelerate.", "trl.", "liger_")
    )
