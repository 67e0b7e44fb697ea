"""Perturbations δ of token embeddings: one tensor per stream, zero where there is no real token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Perturbation:
    """Offsets δ to the token embeddings of a batch, stream by stream.

    A model with one input has the stream ``"tokens"``; an encoder–decoder has ``"encoder"`` and
    ``"decoder"``.

    Args:
        values: per stream, the offsets, (B, T, D). Zero where the mask is false.
        masks: per stream, true at real tokens, (B, T).
    """

    values: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]

    @classmethod
    def zeros(
        cls, masks: Mapping[str, Tensor], widths: Mapping[str, int], dtype: torch.dtype
    ) -> Perturbation:
        """δ = 0 of the shape the masks and the embedding widths give."""
        values = {
            stream: torch.zeros(*mask.shape, widths[stream], dtype=dtype, device=mask.device)
            for stream, mask in masks.items()
        }
        return cls(values, masks)

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def batch_size(self) -> int:
        return next(iter(self.masks.values())).shape[0]

    @property
    def width(self) -> int:
        """Padded length of the longest stream."""
        return max(mask.shape[1] for mask in self.masks.values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.masks.values())).device

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Perturbation:
        """Apply ``function(values, mask)`` to each stream, and set padding to zero."""
        masks = self.masks
        return self._each(lambda s, value: blank_padding(function(value, masks[s]), masks[s]))

    def scaled(self, factor: Callable[[Tensor], Tensor]) -> Perturbation:
        """Each stream times ``factor(values)``; a finite factor leaves padding at zero."""
        return self._each(lambda _, value: value * factor(value))

    def plus(self, other: Perturbation, factor: float = 1.0) -> Perturbation:
        """δ + factor · other."""
        return self._each(lambda stream, value: value + factor * other.values[stream])

    def leaf(self) -> Perturbation:
        """A copy cut from its history that gradients can be taken with respect to."""
        return self._each(lambda _, value: value.detach().clone().requires_grad_())

    def collected(self) -> Perturbation:
        """The gradients that backward passes have left on this leaf."""
        return self._each(lambda _, x: torch.zeros_like(x) if x.grad is None else x.grad)

    def detach(self) -> Perturbation:
        return self._each(lambda _, value: value.detach())

    def where(self, chosen: Tensor, other: Perturbation) -> Perturbation:
        """This perturbation for the samples that are ``chosen`` (B,), the other one for the
        rest.
        """
        rows = chosen[:, None, None]
        return self._each(lambda stream, value: torch.where(rows, value, other.values[stream]))

    def _each(self, function: Callable[[str, Tensor], Tensor]) -> Perturbation:
        values = {stream: function(stream, value) for stream, value in self.values.items()}
        return Perturbation(values, self.masks)

    def above_zeros(self) -> Perturbation:
        """The perturbation of a doubled batch: nothing for its first half, δ for its second."""
        masks = {stream: torch.cat([mask, mask]) for stream, mask in self.masks.items()}
        return Perturbation(_after_zeros(self.values), masks)

    def part(self, rows: slice) -> Perturbation:
        """The perturbation of some of the samples."""
        values = {stream: value[rows] for stream, value in self.values.items()}
        return Perturbation(values, {stream: mask[rows] for stream, mask in self.masks.items()})

    @classmethod
    def joined(cls, parts: Sequence[Perturbation]) -> Perturbation:
        """One perturbation of the samples of all parts."""
        if len(parts) == 1:
            return parts[0]
        streams = parts[0].streams
        return cls(
            {stream: torch.cat([part.values[stream] for part in parts]) for stream in streams},
            {stream: torch.cat([part.masks[stream] for part in parts]) for stream in streams},
        )

    def sentence_norm(self) -> Tensor:
        """‖δ_i‖₂ over all streams and tokens of each sample, (B,)."""
        values = self.values.values()
        norms = torch.stack([torch.linalg.vector_norm(v.detach(), dim=(1, 2)) for v in values])
        together: Tensor = torch.linalg.vector_norm(norms, dim=0)
        return together


@dataclass(frozen=True)
class Cut:
    """Token embeddings that are set to 0 in a pass, in place of an offset.

    Args:
        values: per stream, true at the tokens that are cut, (B, T).
    """

    values: Mapping[str, Tensor]

    def above_zeros(self) -> Cut:
        """The cut of a doubled batch: nothing in its first half, these tokens in its second."""
        return Cut(_after_zeros(self.values))


def _after_zeros(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {s: torch.cat([torch.zeros_like(value), value]) for s, value in values.items()}


def blank_padding(values: Tensor, mask: Tensor) -> Tensor:
    """Set padding to zero, even inf or NaN, which a product with the mask would keep."""
    return values.masked_fill(~mask[..., None], 0.0)


def scatter_real(rows: Tensor, mask: Tensor) -> Tensor:
    """Lay one row per real token, in reading order, into a padded batch.

    Drawing noise this way makes it follow the tokens: the padding side and the padded width change
    nothing.

    Args:
        rows: (number of real tokens, D).
        mask: (B, T).
    """
    padded = torch.zeros(*mask.shape, rows.shape[-1], dtype=rows.dtype, device=rows.device)
    padded[mask] = rows
    return padded
