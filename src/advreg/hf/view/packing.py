"""Packed rows: documents end to end, each with its own perturbation, ball and norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.view.doubling import is_packed
from advreg.methods.base import Batch


@dataclass(frozen=True)
class Documents:
    """Where the documents of packed rows lie.

    Args:
        places: for each position of the rows, (B, L), its place among documents × padded length.
        mask: true at the tokens of each document, (documents, padded length).
    """

    places: Tensor
    mask: Tensor

    @classmethod
    def of(cls, inputs: Batch) -> Documents | None:
        """The documents of a batch whose boundaries are known, by ``cu_seq_lens_q`` or by
        ``position_ids``.
        """
        ids: Tensor = inputs["input_ids"]
        boundaries = inputs.get("cu_seq_lens_q")
        if isinstance(boundaries, Tensor) and ids.shape[0] == 1:
            begins = torch.zeros_like(ids, dtype=torch.bool)
            begins[0, boundaries[:-1].long()] = True
            return cls._beginning_at(begins)
        if is_packed(inputs):
            positions = inputs["position_ids"]
            return cls._beginning_at(positions.diff(prepend=positions[:, :1], dim=1) != 1)
        return None

    @classmethod
    def _beginning_at(cls, begins: Tensor) -> Documents:
        begins = begins.clone()
        begins[:, 0] = True
        document = begins.flatten().cumsum(0) - 1  # of each position
        lengths = document.bincount()
        longest = int(lengths.max())
        place = (
            torch.arange(len(document), device=document.device)
            - (lengths.cumsum(0) - lengths)[document]
        )
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
        return cls((document * longest + place).view(begins.shape), mask)

    def apart(self, ids: Tensor) -> Tensor:
        """Token ids of packed rows as a row per document; padding is 0."""
        rows = ids.new_zeros(self.mask.shape)
        rows.view(-1)[self.places.flatten()] = ids.flatten()
        return rows

    def packed(self, delta: Perturbation | Cut) -> Perturbation | Cut:
        """The perturbation of the documents, laid out as the packed rows."""
        values = {
            stream: value.flatten(0, 1)[self.places] for stream, value in delta.values.items()
        }
        if isinstance(delta, Cut):
            return Cut(values)
        masks = {stream: torch.ones_like(self.places, dtype=torch.bool) for stream in values}
        return Perturbation(values, masks)
