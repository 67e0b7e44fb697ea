"""DeepSpeed under the trainers: refuses settings that would train wrong, and checks checkpoints
before DeepSpeed reads them.

ZeRO spreads the optimizer's state (stages 1 and 2) and gradients (2) over the processes; each keeps
the whole model, so clean passes and ascents run unchanged. But accelerate lets DeepSpeed
update the weights *inside* the backward pass, and ZeRO keeps its own copy of the weights, from
which it makes the next update.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from advreg.hf.checkpoint.ranks import method_files, process_count
from advreg.hf.checkpoint.state import CheckpointError
from advreg.methods.base import Method

_WRITERS = ("checkpoint", "datastates_ckpt", "nebula")  # sections of the config
_LATEST = "latest"  # the file that names the folder DeepSpeed reads
NO_DATA = "it holds something other than tensors and numbers, possibly code, or is damaged"
_CLASSES = (  # in its files, apart from tensors and numbers
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)


def refuse_deepspeed(
    config: Mapping[str, Any], method: Method, args: TrainingArguments, on_non_finite: str
) -> None:
    """Refuse what would train wrong under DeepSpeed, or is untried.

    Args:
        config: DeepSpeed's configuration, with each ``"auto"`` filled in.
        method: how to train.
        args: the trainer's arguments.
        on_non_finite: the trainer's.
    """
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if stage not in (0, 1, 2):
        raise ValueError(
            f"zero_optimization.stage must be 0, 1 or 2, got {stage}, which hides the weights from "
            "the ascent; spread "
            "weights by FSDP2"
        )
    if "repeats_backward" in method.info.traits:
        raise ValueError(
            "method must have one backward pass a step under DeepSpeed, which updates the weights "
            "inside it, got "
            f"{method.info.name}; train under DDP or FSDP2"
        )
    for constraint in method.constraints():
        if constraint.kind == "writes_weights":
            raise ValueError(
                f"{constraint.option} of {method.info.name} must be off under DeepSpeed: "
                f"{constraint.why} and ZeRO's own copy of them undoes it at the next; turn it off, "
                "or train under DDP"
            )
    if on_non_finite != "stop":
        raise ValueError(
            f"on_non_finite must be 'stop' under DeepSpeed, got '{on_non_finite}': the update is "
            "made before it could "
            "be left out"
        )
    if args.fp16:
        raise ValueError(
            "fp16 must be off under DeepSpeed, with whose loss scaling advreg is untried; train in "
            "bf16"
        )
    clipped_at = config.get("gradient_clipping", 0.0)
    if clipped_at != args.max_grad_norm:
        raise ValueError(
            "gradient_clipping in DeepSpeed's config must be max_grad_norm "
            f"({args.max_grad_norm}), got {clipped_at}, "
            "by which alone gradients would be clipped; set it to 'auto'"
        )
    if writers := [section for section in _WRITERS if section in config]:
        raise ValueError(
            f"DeepSpeed's config must not have the section '{writers[0]}': checkpoints that are "
            "written later or "
            "elsewhere cannot be sealed; leave it out"
        )


def require_readable(checkpoint: Path, engaged: bool) -> None:
    """Refuse a checkpoint that DeepSpeed would misread: saved with DeepSpeed and resumed without it
    or the reverse, by another number of processes, or with code in it.

    DeepSpeed unpickles any object in its files, so they are read here first, as tensors, numbers
    and three of its classes.

    Args:
        checkpoint: the checkpoint's folder.
        engaged: whether this run is under DeepSpeed.
    """
    latest = checkpoint / _LATEST
    if latest.is_file() != engaged:
        was, now = ("with", "without") if latest.is_file() else ("without", "with")
        raise CheckpointError(
            f"{checkpoint} was saved {was} DeepSpeed and this run is {now} it, which would start "
            "with an empty "
            f"optimizer; resume {was} it"
        )
    if not engaged:
        return
    if (before := len(method_files(checkpoint))) not in (
        0,
        process_count(),
    ):  # 0: DeepSpeed itself knows how many
        raise CheckpointError(
            f"{checkpoint} was saved under DeepSpeed by {before} processes, got {process_count()}, "
            "and ZeRO "
            f"does not reshard its state; start {before}"
        )
    named = latest.read_text().strip()
    if not re.fullmatch(r"global_step\d+", named) or not (checkpoint / named).is_dir():
        raise CheckpointError(
            f"{latest} must name a folder global_step… in its own folder, got '{named}'"
        )
    with torch.serialization.safe_globals([(_Theirs, name) for name in _CLASSES]):
        for file in sorted(path for path in (checkpoint / named).rglob("*") if path.is_file()):
            _require_data(file)


class _Theirs:
    """Takes the place of DeepSpeed's classes in a file that is only checked."""

    def __new__(cls, *_: object) -> _Theirs:
        return super().__new__(cls)


def _require_data(file: Path) -> None:
    try:
        torch.load(file, map_location="meta", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({NO_DATA}); resume from an earlier checkpoint"
        ) from error
