"""Checks before a training that trainer, model and data offer what a method needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import torch.distributed as distributed
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.utils.data import IterableDataset
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from advreg.hf.checkpoint.deepspeed import refuse_deepspeed
from advreg.hf.guards.capability import UnsupportedError, refusal
from advreg.hf.view.dropout import has_dropout
from advreg.hf.view.injection import bare
from advreg.methods.base import Method, Need

_PARALLELISM = {"tp": "tensor", "cp": "context", "sp": "sequence"}
_SHARDED = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM)
_OTHER_HEADS = ("ForQuestionAnswering", "ForMultipleChoice", "ForPreTraining")

Lack = tuple[Need, str, str]  # what is lacking, the reason, a remedy


def require(trainer: Trainer, method: Method) -> None:
    """Refuse the first thing that a method needs and a trainer does not have.

    Raises:
        UnsupportedError: with the reason, a remedy if there is one, and the methods that work.
    """
    data = getattr(trainer.train_dataset, "samples", trainer.train_dataset)
    packs = getattr(trainer.args, "packing", False)
    of_collator = _of_collator(trainer.data_collator, packs)
    _refuse(
        method, _of_arguments(trainer), _of_model(bare(trainer.model)), _of_data(data), of_collator
    )


def require_in_loop(
    model: nn.Module,
    data: object,
    collator: object,
    method: Method,
    accelerator: Accelerator | None,
) -> None:
    """The same for a loop without a trainer."""
    _refuse(
        method, _of_processes(accelerator), _of_model(bare(model)), _of_data(data),
        _of_collator(collator),
    )  # fmt: skip
    if accelerator is not None and accelerator.distributed_type in _SHARDED:
        raise UnsupportedError(
            f"a loop of your own must train under DDP, got {accelerator.distributed_type}; use "
            "advreg.attach with a Trainer"
        )


def _refuse(method: Method, *lacks: Iterable[Lack]) -> None:
    for need, reason, remedy in chain(*lacks):
        if need in method.info.needs:
            raise refusal(need, reason, remedy)


def _of_processes(accelerator: Accelerator | None) -> Iterator[Lack]:
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    if accelerator is not None:
        world = accelerator.num_processes
    if world > 1:
        reason = f"a loop of your own keeps no sample in one of its {world} processes"
        yield "ids", reason, "use advreg.attach with a Trainer"


def require_arguments(args: TrainingArguments, method: Method, on_non_finite: str) -> None:
    """Refuse arguments that only the stock step can train with."""
    if on_non_finite == "skip" and args.world_size > 1:
        raise ValueError(
            "on_non_finite must be 'stop' with several processes, got 'skip' with "
            f"{args.world_size}: one "
            "that skips would leave the others waiting for its gradient"
        )
    if not method.info.needs:
        return
    if args.n_gpu > 1:
        raise ValueError(
            f"advreg trains on one GPU per process, got a process with {args.n_gpu}; "
            "launch with torchrun or "
            "accelerate, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    if "lomo" in str(args.optim).lower():
        raise ValueError(
            f"optim must be an optimizer with a separate step, got {args.optim}, which "
            "updates the weights "
            "inside the backward pass; choose adamw_torch or another"
        )


def require_sharding(trainer: Trainer, method: Method, on_non_finite: str) -> None:
    """Refuse ways to spread the weights over processes that this method or these settings cannot
    train with.
    """
    if not method.info.needs:
        return
    if trainer.is_deepspeed_enabled:
        plugin = trainer.accelerator.state.deepspeed_plugin
        refuse_deepspeed(plugin.deepspeed_config, method, trainer.args, on_non_finite)
    if not trainer.is_fsdp_enabled:
        return
    if not trainer.accelerator.is_fsdp2:
        raise ValueError(
            "fsdp_config must have 'version': 2, got 1, which hides the weights from the ascent"
        )
    for constraint in method.constraints():
        if constraint.kind == "whole_weights":
            raise ValueError(
                f"{constraint.option} of {method.info.name} must be off under FSDP: "
                f"{constraint.why}; turn it off, or train under DDP"
            )
    if trainer.args.fp16:
        raise ValueError(
            "fp16 must be off under FSDP: an ascent that overflows is repeated, and a process "
            "that repeats alone "
            "would wait forever; train in bf16"
        )


def _of_arguments(trainer: Trainer) -> Iterator[Lack]:
    for short, name in _PARALLELISM.items():
        size = getattr(trainer, f"get_{short}_size", lambda: 1)()
        if size > 1:
            yield (
                "perturbation",
                f"{name} parallelism splits samples over {size} processes",
                "turn it off",
            )
    if trainer.neftune_noise_alpha is not None:
        alpha = trainer.neftune_noise_alpha
        reason = f"neftune_noise_alpha={alpha} adds its own noise to the embeddings"
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


def _of_data(data: object) -> Iterator[Lack]:
    if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        reason = f"train_dataset must have a length and items by index, got {type(data).__name__}"
        yield "ids", reason, "load it whole"


def _of_collator(collator: object, packs: bool = False) -> Iterator[Lack]:
    flattens = isinstance(getattr(collator, "collator", collator), DataCollatorWithFlattening)
    if flattens or getattr(collator, "padding_free", False):
        remedy = 'set packing_strategy="wrapped"' if packs else "take a collator that pads"
        yield "ids", "the collator makes one row of several samples", remedy
