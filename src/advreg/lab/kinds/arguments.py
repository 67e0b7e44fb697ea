"""``TrainingArguments`` from plain values; unknown names and invalid numbers are refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch
from transformers import TrainingArguments

from advreg.core.checks import suggest
from advreg.core.coerce import coerce

_CHECKED = (
    bool,
    int,
    float,
    bool | None,
    int | None,
    float | None,
)  # the library takes any value for them
_PRECISIONS: dict[str, dict[str, bool]] = {
    "fp32": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
}


def training_arguments(
    folder: Path, precision: str, fields: Mapping[str, Any]
) -> TrainingArguments:
    """Arguments of a run in ``folder``; ``fields`` are any of TrainingArguments' own."""
    fields = _checked(fields)
    if precision not in _PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}")
    if precision != "fp32" and not (torch.accelerator.is_available() or fields.get("use_cpu")):
        raise ValueError(
            f"precision must be fp32 without a GPU, got '{precision}'; bf16 may be tried with "
            "use_cpu=True where the "
            "CPU has instructions for it"
        )
    if fields.get("gradient_accumulation_steps", 1) < 1:
        raise ValueError(
            "gradient_accumulation_steps must be 1 or more, got "
            f"{fields['gradient_accumulation_steps']}"
        )
    try:
        return TrainingArguments(output_dir=str(folder), **{**_PRECISIONS[precision], **fields})
    except (TypeError, ValueError) as error:
        raise ValueError(f"TrainingArguments refuses {dict(fields)}: {error}") from error


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, if all of them exist; texts become numbers where the field is one."""
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for name in fields:
        if name not in known:
            raise ValueError(
                f"TrainingArguments has no field '{name}'{suggest(name, known)}; see its "
                "documentation"
            )
    hints = get_type_hints(TrainingArguments)
    checked = {
        name: coerce(name, value, hints[name]) if hints[name] in _CHECKED else value
        for name, value in fields.items()
    }
    if checked.get("report_to", "none") is None:
        checked["report_to"] = "none"  # files and flags read this word as None
    return checked


def update_count(arguments: TrainingArguments, batches: int) -> int:
    """The updates of a run with ``batches`` per epoch, counted as in the Trainer."""
    if arguments.max_steps >= 0:
        return arguments.max_steps
    return math.ceil(
        arguments.num_train_epochs * max(1, -(-batches // arguments.gradient_accumulation_steps))
    )
