"""Fused passes over a doubled batch: clean in its first half and perturbed in its second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from advreg.hf.view.head import Head
from advreg.hf.view.inputs import ModelInputs
from advreg.methods.base import Batch

logger = logging.getLogger(__name__)

_MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
_PACKED = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "document_ids",
)


class Fusing:
    """Decides whether clean and perturbed copies go in one pass.

    Args:
        core: the Hugging Face model without wrappers.
        head: its prediction head.
    """

    def __init__(self, core: nn.Module, head: Head) -> None:
        self._core, self._head = core, head
        self._allowed = True
        self._reported: set[str] = set()
        self._used = False  # in the last trained pass

    def begin_pass(self, is_doubled: bool) -> None:
        """Note that a trained pass begins; its inputs may hold both copies already."""
        self._used = is_doubled

    def doubled(self, inputs: Batch, keeps_labels: bool) -> ModelInputs | None:
        """The inputs of a fused pass; None if there must be two."""
        self._used = self.may_double(inputs, keeps_labels)
        return twice(inputs) if self._used else None

    def may_double(self, inputs: Batch, keeps_labels: bool = False) -> bool:
        """Whether a doubled pass is valid and has the same loss; the log says once why not.

        Args:
            inputs: the arguments of the forward pass.
            keeps_labels: whether the labels are among them, for a loss that only the model can
                compute.
        """
        if not self._allowed:
            return False
        self._refuse_batch_statistics()
        if keeps_labels:
            reason: str | None = (
                f"{type(self._core).__name__} computes a loss that is not known to be a plain mean"
            )
        elif self._head.adds_router_loss(inputs):
            reason = "the router's loss covers all rows"
        else:
            reason = reason_against(inputs)
        if reason is not None and reason not in self._reported:
            self._reported.add(reason)
            logger.warning("clean and perturbed copies go in two passes: %s", reason)
        return reason is None

    def stop(self) -> bool:
        """Make two passes from now on if the last trained pass was fused, as memory ran out.

        Returns false if that cannot help: nothing was fused, or there are several processes, which
        would wait for the one that repeats a pass.
        """
        if not self._used or torch.distributed.is_initialized():
            return False
        self._allowed = self._used = False
        logger.warning(
            "out of memory in the fused pass; clean and perturbed copies go in two passes from now "
            "on"
        )
        return True

    @cached_property
    def _batch_norms(self) -> dict[str, nn.Module]:
        kind = nn.modules.batchnorm._BatchNorm
        return {
            name: module for name, module in self._core.named_modules() if isinstance(module, kind)
        }

    def _refuse_batch_statistics(self) -> None:
        for name, module in self._batch_norms.items():
            if module.training:
                raise ValueError(
                    f"fuse must be off for this model: '{name}' takes statistics over the batch, "
                    "and the fused pass would mix clean and perturbed samples in them"
                )


def twice(inputs: Batch) -> ModelInputs:
    """The batch followed by itself."""
    return _per_sample(inputs, lambda value: torch.cat([value, value]))


def part_of(batch: Batch, rows: slice) -> ModelInputs:
    """Some of the samples of a batch, with its padding."""
    return _per_sample(batch, lambda value: value[rows])


def _per_sample(batch: Batch, change: Callable[[Tensor], Tensor]) -> ModelInputs:
    """The batch with a change to each entry that has a row per sample."""
    size = rows_of(batch)
    return {
        name: change(value)
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size
        else value
        for name, value in batch.items()
    }


def rows_of(inputs: Batch) -> int:
    """Rows of a batch."""
    name = next(name for name in _MAIN_INPUTS if name in inputs)
    rows: int = inputs[name].shape[0]
    return rows


def reason_against(inputs: Batch) -> str | None:
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


def is_packed(inputs: Batch) -> bool:
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
