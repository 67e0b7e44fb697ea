"""Rows for tiny models, and a collator for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiny_models import IGNORED, REAL_TOKENS

Row = dict[str, Any]

ROWS = 12  # three batches of four
LENGTHS = (9, 5, 7, 6, 8, 4, 9, 6, 5, 7, 8, 6)


@dataclass
class Collated:
    """Pads what is ragged, on the right, and makes a tensor of everything.

    Args:
        pad: the id of padding.
        model: makes ``decoder_input_ids`` of the labels.
    """

    pad: int = 0
    model: Any = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = {name: self._together(name, [row[name] for row in rows]) for name in rows[0]}
        if "input_ids" in batch and "attention_mask" not in batch and batch["input_ids"].dim() == 2:
            sizes = torch.tensor([len(row["input_ids"]) for row in rows])
            batch["attention_mask"] = (
                torch.arange(batch["input_ids"].shape[1]) < sizes[:, None]
            ).long()
        if self.model is not None:
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(
                batch["labels"]
            )
        return batch

    def _together(self, name: str, values: list[Any]) -> Tensor:
        if not isinstance(values[0], list) or isinstance(values[0][0], list):
            return torch.stack([torch.as_tensor(value) for value in values])
        width = max(map(len, values))
        fill = {"labels": IGNORED, "input_ids": self.pad}.get(name, 0)
        return torch.tensor([value + [fill] * (width - len(value)) for value in values])


def ids(rows: int = ROWS, seed: int = 0) -> list[list[int]]:
    """Token ids of rows of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (LENGTHS * (1 + rows // len(LENGTHS)))[:rows]
    return [
        torch.randint(*REAL_TOKENS, (length,), generator=generator).tolist() for length in lengths
    ]


def classified(classes: int = 3, rows: int = ROWS) -> list[Row]:
    return [{"input_ids": row, "labels": sum(row) % classes} for row in ids(rows)]


def valued(outputs: int = 1, rows: int = ROWS) -> list[Row]:
    """A value, or several, to be regressed on."""
    numbers = [
        [(sum(row) * (place + 1)) % 17 / 8 - 1 for place in range(outputs)] for row in ids(rows)
    ]
    return [
        {"input_ids": row, "labels": value[0] if outputs == 1 else value}
        for row, value in zip(ids(rows), numbers, strict=True)
    ]


def several_labels(classes: int = 3) -> list[Row]:
    return [
        {"input_ids": row, "labels": [float(row[place] % 2) for place in range(classes)]}
        for row in ids()
    ]


def tagged(classes: int = 3) -> list[Row]:
    """A class for every token, but the first."""
    return [
        {"input_ids": row, "labels": [IGNORED, *(token % classes for token in row[1:])]}
        for row in ids()
    ]


def masked(mask: int = 4) -> list[Row]:
    """Every third token hidden, to be predicted."""
    return [
        {
            "input_ids": [mask if place % 3 == 1 else token for place, token in enumerate(row)],
            "labels": [token if place % 3 == 1 else IGNORED for place, token in enumerate(row)],
        }
        for row in ids()
    ]


def continued() -> list[Row]:
    """For causal language models."""
    return [{"input_ids": row, "labels": row} for row in ids()]


def translated() -> list[Row]:
    return [
        {"input_ids": row, "labels": target[:6]}
        for row, target in zip(ids(), ids(seed=1), strict=True)
    ]
