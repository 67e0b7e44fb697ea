"""A doubled batch: clean in its first half and perturbed in its second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, cat

from advreg.methods.base import Batch

_MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
_PACKED = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "document_ids",
)


def twice(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch followed by itself."""
    size = rows_of(inputs)
    return {
        name: cat([value, value]) if is_per_sample(value, size) else value
        for name, value in inputs.items()
    }


def part_of(batch: Batch, rows: slice) -> dict[str, Any]:
    """Some of the samples of a batch, padded as they were."""
    size = rows_of(batch)
    return {
        name: value[rows] if is_per_sample(value, size) else value for name, value in batch.items()
    }


def is_per_sample(value: Any, size: int) -> bool:
    """Whether a batch's entry has a row for each sample."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size


def rows_of(inputs: Mapping[str, Any]) -> int:
    """Rows of a batch."""
    name = next(name for name in _MAIN_INPUTS if name in inputs)
    rows: int = inputs[name].shape[0]
    return rows


def reason_against(inputs: Mapping[str, Any]) -> str | None:
    """Why a doubled batch would be invalid, or None."""
    packed = next((name for name in _PACKED if inputs.get(name) is not None), None)
    if packed is not None or is_packed(inputs):
        return f"its rows are packed ({packed or 'position_ids'})"
    size = rows_of(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] != size:
            return f"'{name}' has {value.shape[0]} entries for {size} rows"
        if isinstance(value, Mapping | list | tuple) and len(value):
            return f"'{name}' is a {type(value).__name__}"
    return None


def is_packed(inputs: Mapping[str, Any]) -> bool:
    """Whether the positions of a row without a mask start again, so that the row holds several
    documents.
    """
    positions = inputs.get("position_ids")
    if (
        not isinstance(positions, Tensor)
        or positions.dim() != 2
        or inputs.get("attention_mask") is not None
    ):
        return False
    return bool((positions.diff(dim=1) < 1).any())  # some models count from 2


def first_half(output: Any, rows: int) -> Any:
    """The part of a doubled pass's output that belongs to the first copy.

    Args:
        output: what the model returned.
        rows: rows of the doubled batch.
    """
    if isinstance(output, Tensor):
        is_doubled = output.dim() > 0 and output.shape[0] > 0 and output.shape[0] % rows == 0
        return output[: output.shape[0] // 2] if is_doubled else output
    if isinstance(output, Mapping):
        for name, value in output.items():
            output[name] = first_half(value, rows)  # type: ignore[index] # a ModelOutput stays one
        return output
    if type(output) in (tuple, list):
        return type(output)(first_half(value, rows) for value in output)
    return output
