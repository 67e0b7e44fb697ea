"""Padded batches laid out and read back token by token, for tests to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.perturbation import Perturbation

Side = Literal["left", "right"]
Samples = Sequence[Tensor]  # one (length, D) tensor per sample

SIDES: tuple[Side, ...] = ("left", "right")
few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**16)
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=5)
sides = st.sampled_from(SIDES)


def mask_of(sizes: Sequence[int], side: Side = "right", extra: int = 0) -> Tensor:
    """True at the real tokens of samples of these lengths, padded ``extra`` tokens further than
    needed.
    """
    width = max(sizes) + extra
    rows = [[True] * size + [False] * (width - size) for size in sizes]
    return torch.tensor([row if side == "right" else row[::-1] for row in rows])


def padded(
    samples: Samples, side: Side = "right", extra: int = 0, fill: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The samples as (B, T, D) and their mask, with ``fill`` on the padding."""
    mask = mask_of([len(sample) for sample in samples], side, extra)
    values = torch.full((*mask.shape, samples[0].shape[1]), fill, dtype=samples[0].dtype)
    for row, sample in enumerate(samples):
        first = 0 if side == "right" else mask.shape[1] - len(sample)
        for token in range(len(sample)):
            values[row, first + token] = sample[token]
    return values, mask


def perturbation(
    streams: Mapping[str, Samples] | Samples, side: Side = "right", extra: int = 0
) -> Perturbation:
    """δ from its rows, sample by sample; a bare list is the stream ``"tokens"``."""
    streams = streams if isinstance(streams, Mapping) else {"tokens": streams}
    laid = {stream: padded(samples, side, extra) for stream, samples in streams.items()}
    return Perturbation(
        {s: value for s, (value, _) in laid.items()}, {s: mask for s, (_, mask) in laid.items()}
    )


def real(delta: Perturbation, stream: str = "tokens") -> list[Tensor]:
    """The rows of the real tokens of each sample: the inverse of :func:`perturbation`."""
    rows = zip(delta.values[stream].detach(), delta.masks[stream], strict=True)
    return [
        torch.stack([row for row, here in zip(value, mask, strict=True) if here])
        for value, mask in rows
    ]


def on_padding(delta: Perturbation) -> Tensor:
    """Everything that stands on padding, of all streams, flat."""
    return torch.cat(
        [value[~delta.masks[stream]].flatten() for stream, value in delta.values.items()]
    )


def random_samples(
    sizes: Sequence[int], seed: int, width: int = 3, scale: float = 1.0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(size, width, generator=generator) for size in sizes]


def same(ours: Samples, theirs: Samples) -> bool:
    """Equal bit for bit, sample by sample."""
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )
