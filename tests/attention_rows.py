"""Random queries, keys and values, and masks of which no query sees nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def drawn_states(
    rows: int,
    queries: int,
    keys: int,
    heads: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Tensor]:
    """Queries (B, T, H, D), keys and values (B, S, H, D)."""
    random = torch.Generator().manual_seed(seed)
    lengths = (queries, keys, keys)
    return [
        torch.randn(rows, length, heads, width, generator=random).to(dtype) for length in lengths
    ]


def drawn_mask(rows: int, queries: int, keys: int, heads: int = 1, seed: int = 0) -> Tensor:
    """Keys of each row that are seen, the same by all its queries, (B, 1, T, S); laid out as
    transformers does.
    """
    seen = torch.rand(rows, 1, 1, keys, generator=torch.Generator().manual_seed(seed)) < 0.6
    seen[..., 0] = True
    return seen.expand(rows, 1, queries, keys)
