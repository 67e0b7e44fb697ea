"""Neighbours in the cache set: whose perturbation an uncached sample borrows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.perturbation import Perturbation
from advreg.memory.cache import PerturbationCache

NeighbourChoice = Literal["nearest", "random"]

_QUERIES_AT_ONCE = 4096


def nearest(queries: Tensor, anchors: Tensor, count: int, chunk: int = _QUERIES_AT_ONCE) -> Tensor:
    """The ``count`` anchors of highest cosine similarity to each query, exactly; (Q, d), (A, d) → (Q, count).

    Zero vectors have similarity 0 to everything.
    """
    anchors = F.normalize(anchors.float(), dim=1)
    found = [
        (F.normalize(part.float(), dim=1) @ anchors.T).topk(count, dim=1).indices  # scores (chunk, A)
        for part in torch.split(queries, chunk)
    ]
    return torch.cat(found) if found else torch.empty(0, count, dtype=torch.int64, device=queries.device)


def strangers(queries: int, anchors: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different anchors drawn at random for each query, (queries, count)."""
    parts = [min(_QUERIES_AT_ONCE, queries - first) for first in range(0, queries, _QUERIES_AT_ONCE)]
    draws = [torch.rand(part, anchors, generator=generator).topk(count, dim=1).indices for part in parts]
    return torch.cat(draws)


@dataclass
class NeighbourIndex:
    """K_i for every sample and stream, as slots of the cache; each stream has its own neighbours.

    Args:
        slots: per stream, (n, K). Rows of cached samples are never read.
    """

    slots: dict[str, Tensor]

    @classmethod
    def build(
        cls,
        vectors: Mapping[str, Tensor],
        cached: Tensor,
        count: int,
        choice: NeighbourChoice,
        generator: torch.Generator,
    ) -> NeighbourIndex:
        """Find the neighbours once, before training.

        Args:
            vectors: per stream, the sentence vectors, (n, d).
            cached: ids of the cache set, (A,), in the order of the cache's slots.
            count: K.
            choice: ``"nearest"`` by cosine similarity; ``"random"`` is the paper's R-K-NN ablation.
            generator: source of the random choice.
        """
        if count > len(cached):
            raise ValueError(
                f"neighbours must be at most the number of cached samples ({len(cached)}), got {count}; "
                "lower neighbours or raise cache_fraction"
            )
        slots = {}
        for stream, vector in vectors.items():
            if choice == "random":
                slots[stream] = strangers(vector.shape[0], len(cached), count, generator).to(vector.device)
            else:
                slots[stream] = nearest(vector, vector[cached.to(vector.device)], count)
        return cls(slots)

    def borrow(self, ids: Tensor, cache: PerturbationCache, like: Perturbation) -> Perturbation:
        """δ_{i,ℓ} = mean over j ∈ K_i of the mean over ℓ′ of δ_{j,ℓ′}, the same at every real position ℓ.

        Neighbours that were never written do not count; a sample without any gets zero.
        """
        values = {}
        for stream, zeros in like.values.items():
            slots = self.slots[stream][ids.to(self.slots[stream].device)].to(cache.device)  # (B, K)
            written = (cache.written_at[slots] >= 0).float()[..., None]  # (B, K, 1)
            total = (cache.means(stream, slots) * written).sum(1)  # (B, D)
            mean = total / written.sum(1).clamp_min(1)
            values[stream] = zeros + mean.to(zeros.device, zeros.dtype)[:, None, :]
        return Perturbation(values, like.masks).map(lambda value, _: value)
