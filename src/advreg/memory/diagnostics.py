"""Statistics of a cache, taken once at the end of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.ball import Ball
from advreg.memory.cache import PerturbationCache
from advreg.memory.neighbours import NeighbourIndex, uncached
from advreg.records.diagnostics import Histogram, MemoryHealth, TokenNorms

_MOST_SAMPLES = 2048  # whose sizes and similarities are counted
_AT_ONCE = 256
_BINS = 40
_SHOWN, _LONGEST_SHOWN = 8, 48  # samples shown token by token, and the most tokens of each


def memory_health(
    cache: PerturbationCache, ball: Ball, similarity: Sequence[Histogram]
) -> MemoryHealth:
    """Sizes of what is cached, when it was written, and the norms of a few samples token by
    token.
    """
    epochs, counts = torch.unique(cache.written_at.cpu(), return_counts=True)
    written = cache.ids[cache.written_at >= 0].cpu()
    return MemoryHealth(
        sizes=_sizes(cache, ball, spread_out(written, _MOST_SAMPLES)),
        written={
            str(epoch): count for epoch, count in zip(epochs.tolist(), counts.tolist(), strict=True)
        },
        similarity=list(similarity),
        tokens=_token_norms(cache, spread_out(written[_is_short(cache, written)], _SHOWN)),
    )


def similarity_histograms(
    vectors: Mapping[str, Tensor],
    rows: Tensor,
    index: NeighbourIndex,
    anchors: Mapping[str, Tensor] | None = None,
) -> list[Histogram]:
    """Cosine similarity of uncached samples, up to a number of them, to their neighbours; a
    histogram per stream.

    Args:
        vectors: sentence vectors of this process's samples, (n, d).
        rows: which of them are cached, in the order of the cache's slots.
        index: the neighbours.
        anchors: the vectors its slots stand for, where they are not the vectors of ``rows``.
    """
    others = uncached(len(next(iter(vectors.values()))), rows)
    samples = spread_out(others, _MOST_SAMPLES)
    found = []
    for stream, vector in vectors.items():
        slots = index.slots[stream][samples.to(index.slots[stream].device)].long().cpu()  # (Q, K)
        pool, places = (vector, rows[slots]) if anchors is None else (anchors[stream], slots)
        theirs = pool[places.to(pool.device)].float()  # (Q, K, d)
        mine = vector[samples.to(vector.device)].to(theirs)  # (Q, d)
        alike = F.cosine_similarity(mine[:, None], theirs, dim=2)
        found.append(Histogram.of(stream, alike.flatten().tolist(), -1.0, 1.0, _BINS))
    return found


def spread_out(ids: Tensor, count: int) -> Tensor:
    """At most this many of them, evenly spaced.

    Example:
        >>> spread_out(torch.arange(10), 4).tolist(), spread_out(torch.arange(2), 4).tolist()
        ([0, 3, 6, 9], [0, 1])
    """
    if len(ids) <= count:
        return ids
    return ids[torch.linspace(0, len(ids) - 1, count, dtype=torch.float64).round().long()]


def _sizes(cache: PerturbationCache, ball: Ball, ids: Tensor) -> list[Histogram]:
    """‖δ‖/ε, per sample or per real token as the ball measures."""
    if ball.radius == 0:
        return []
    found: dict[str, list[float]] = {}
    for part in torch.split(ids, _AT_ONCE):
        delta = cache.recall(part)
        for stream, values in delta.values.items():
            sizes = (ball.size(values) / ball.radius)[..., 0]  # (B, 1) or (B, T)
            if ball.scope == "token":
                sizes = sizes[delta.masks[stream]]
            found.setdefault(stream, []).extend(sizes.flatten().tolist())
    return [Histogram.of(stream, sizes, 0.0, 1.0, _BINS) for stream, sizes in found.items()]


def _is_short(cache: PerturbationCache, ids: Tensor) -> Tensor:
    lengths = torch.stack(
        [length.cpu()[cache.shard.rows(ids)] for length in cache.sample_lengths.values()]
    )
    return (lengths <= _LONGEST_SHOWN).all(0)


def _token_norms(cache: PerturbationCache, ids: Tensor) -> list[TokenNorms]:
    if len(ids) == 0:
        return []
    delta = cache.recall(ids)
    norms = {
        stream: torch.linalg.vector_norm(values, dim=2) for stream, values in delta.values.items()
    }  # (B, T)
    return [
        TokenNorms(sample=sample, stream=stream, norms=norms[stream][row][mask[row]].tolist())
        for row, sample in enumerate(ids.tolist())
        for stream, mask in delta.masks.items()
    ]
