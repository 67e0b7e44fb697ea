"""The check, before a training, that trainer, model and data offer what a method needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch.utils.data import IterableDataset
from transformers import DataCollatorWithFlattening

from advreg.hf.guards.capability import refusal
from advreg.hf.view.dropout import has_dropout
from advreg.hf.view.injection import bare
from advreg.methods.base import Need

_PARALLELISM = {"tp": "tensor", "cp": "context", "sp": "sequence"}
_OTHER_HEADS = ("ForQuestionAnswering", "ForMultipleChoice", "ForPreTraining")

Lack = tuple[Need, str, str]  # what is lacking, the reason, a remedy


def require(trainer: Any) -> None:
    """Refuse the first thing that the trainer's method needs and does not find.

    Raises:
        UnsupportedError: with the reason, a remedy if there is one, and the methods that work.
    """
    for need, reason, remedy in _lacks(trainer):
        if need in trainer.method.info.needs:
            raise refusal(need, reason, remedy)


def _lacks(trainer: Any) -> Iterator[Lack]:
    yield from _of_arguments(trainer)
    yield from _of_model(bare(trainer.model))
    yield from _of_data(getattr(trainer.train_dataset, "samples", trainer.train_dataset))
    yield from _of_collator(trainer)


def _of_arguments(trainer: Any) -> Iterator[Lack]:
    for short, name in _PARALLELISM.items():
        size = getattr(trainer, f"get_{short}_size", lambda: 1)()
        if size > 1:
            yield (
                "perturbation",
                f"{name} parallelism splits samples over {size} processes",
                "turn it off",
            )
    if trainer.neftune_noise_alpha is not None:
        reason = f"neftune_noise_alpha={trainer.neftune_noise_alpha} adds its own noise to the embeddings"
        yield "perturbation", reason, "leave neftune_noise_alpha out"
        yield "predictions", reason, "leave neftune_noise_alpha out"


def _of_model(core: Any) -> Iterator[Lack]:
    name = type(core).__name__
    if not hasattr(core, "config"):
        reason = f"{name} has no `config`, which says how its inputs are read"
        yield "perturbation", reason, "use a PreTrainedModel"
        yield "predictions", reason, "use a PreTrainedModel"
    embeddings = None
    with suppress(AttributeError, NotImplementedError):
        embeddings = core.get_input_embeddings()
    if embeddings is None or not hasattr(getattr(embeddings, "base_layer", embeddings), "weight"):
        yield (
            "perturbation",
            f"{name}.get_input_embeddings() gives no token embeddings to perturb",
            "",
        )
        yield (
            "ids",
            f"{name}.get_input_embeddings() gives no token embeddings to describe samples by",
            "",
        )
    if not hasattr(core, "can_generate"):
        yield (
            "predictions",
            f"{name} is not a PreTrainedModel, so what it predicts is not known",
            "",
        )
    if not has_dropout(core, active=False):  # the mode is set at the first step
        yield (
            "dropout",
            "the model drops nothing, so two passes would predict the same",
            "set a dropout above 0 in its config (Llama-like models have attention_dropout)",
        )
    if name.endswith(_OTHER_HEADS):
        yield "predictions", f"the head of {name} has no single tensor `logits` to compare", ""


def _of_data(data: Any) -> Iterator[Lack]:
    if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        reason = f"train_dataset must have a length and items by index, got {type(data).__name__}"
        yield "ids", reason, "load it whole"


def _of_collator(trainer: Any) -> Iterator[Lack]:
    collator = trainer.data_collator
    flattens = isinstance(getattr(collator, "collator", collator), DataCollatorWithFlattening)
    if flattens or getattr(collator, "padding_free", False):
        is_packing = getattr(trainer.args, "packing", False)
        remedy = 'set packing_strategy="wrapped"' if is_packing else "take a collator that pads"
        yield "ids", "the collator makes one row of several samples", remedy
