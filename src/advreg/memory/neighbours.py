"""Neighbours in the cache set: whose perturbation an uncached sample borrows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.perturbation import Perturbation
from advreg.core.shard import Shard
from advreg.memory.cache import PerturbationCache
from advreg.memory.exchange import SharedMeans

NeighbourChoice = Literal["nearest", "random"]
NeighbourScope = Literal["all", "shard"]
Advance = Callable[[int], None]

# Scores held at once. On a CPU 2048 × 2048, 16 MiB: the products run at 45 billion multiply-adds a
# second and thread, and at 30 to 35 where a tile is too large for the allocator to reuse. On a GPU
# 4 GiB.
_SCORES_ON_CPU = 2**22
_SCORES_ON_GPU = 2**30


def nearest(
    queries: Tensor,
    anchors: Tensor,
    count: int,
    *,
    device: torch.device | str | None = None,
    rows: Tensor | None = None,
    advance: Advance | None = None,
    scores_at_once: int | None = None,
) -> Tensor:
    """The ``count`` anchors of highest cosine similarity to each query, exactly; (Q, d), (A, d) →
    (Q, count).

    Every query is compared with every anchor, in float32, for any precision of other products.
    Nearest first, and of anchors whose computed scores are equal the lowest first. With ``count`` =
    1 it is the lowest of them that is found; with more it is left open which of the anchors that
    tie for the last place are. Zero vectors have similarity 0 to everything. The same call on the
    same machine finds the same.

    Args:
        queries: one vector per row; they stay where they are and are sent to the device a few at a
            time.
        anchors: the vectors to choose from; all of them are held on the device, in float32.
        count: K.
        device: where to compute; by default where the queries are.
        rows: search for these rows of ``queries`` only, (Q,).
        advance: called with the number of queries done since the last call.
        scores_at_once: the most similarities to hold at a time, in square tiles; by default 2²² on
            a CPU, 2³⁰ on a GPU.

    Returns:
        Indices of anchors, int32, on the CPU.
    """
    _check_count(count, len(anchors))
    device = torch.device(queries.device if device is None else device)
    if scores_at_once is None:
        scores_at_once = _SCORES_ON_CPU if device.type == "cpu" else _SCORES_ON_GPU
    side = math.isqrt(scores_at_once)
    total = queries.shape[0] if rows is None else len(rows)
    found = torch.empty(total, count, dtype=torch.int32, device=device)
    anchors = F.normalize(anchors.to(device).float(), dim=1)

    def search() -> Iterator[int]:
        for first in range(0, total, side):
            place = slice(first, first + side)
            part = F.normalize(_part(queries, rows, place, device).float(), dim=1)
            found[place] = _best(part, anchors, count, side)
            yield len(part)

    with torch.no_grad(), _full_precision(device):
        _run(search(), device, advance)
    return found.cpu()


def _best(queries: Tensor, anchors: Tensor, count: int, side: int) -> Tensor:
    """The anchors of highest score, (B, count), from ``side`` anchors at a time."""
    scores = queries.new_empty(len(queries), 0)
    found = torch.empty_like(scores, dtype=torch.int64)
    for first in range(0, len(anchors), side):
        new_scores, new = _highest(queries @ anchors[first : first + side].T, count)
        # what was found before comes first, and the sort is stable: at equal scores the lower
        # anchor stays ahead
        scores, order = torch.cat([scores, new_scores], dim=1).sort(
            dim=1, descending=True, stable=True
        )
        found = torch.cat([found, new + first], dim=1).gather(1, order)
        scores, found = scores[:, :count], found[:, :count]
    return found


def _highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and where they stand, up to ``count``; for several in the
    order they stand.
    """
    if count == 1:  # one pass over the row, where topk makes several; and the first of equal maxima
        highest = scores.max(dim=1, keepdim=True)
        return highest.values, highest.indices
    at = scores.topk(min(count, scores.shape[1]), dim=1).indices.sort(dim=1).values
    return scores.gather(1, at), at


def _part(queries: Tensor, rows: Tensor | None, place: slice, device: torch.device) -> Tensor:
    """Some of the queries on the device; from the host through pinned memory, so that the copy
    waits in the GPU's queue and not here.
    """
    part = queries[place] if rows is None else queries[rows[place].to(queries.device)]
    if device.type == "cuda" and part.device.type == "cpu":
        return part.pin_memory().to(device, non_blocking=True)
    return part.to(device)


def _run(parts: Iterator[int], device: torch.device, advance: Advance | None) -> None:
    """Compute parts, whose sizes come when they are computed or queued, and report those done.

    The host queues at most two parts ahead of a GPU. Without a limit it would queue, and pin,
    everything at once, and report as done what is only queued.
    """
    ahead = 2 if device.type == "cuda" else 0
    queued: deque[tuple[torch.cuda.Event | None, int]] = deque()
    for size in chain(parts, repeat(0, ahead)):
        event = None
        if ahead:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
        queued.append((event, size))
        if len(queued) > ahead:
            event, size = queued.popleft()
            if event is not None:
                event.synchronize()
            if advance is not None:
                advance(size)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Products of float32 matrices in float32, neither TF32 nor bfloat16; the setting is restored
    afterwards.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    precisions = [backend.fp32_precision for backend in backends]
    with torch.autocast(device.type, enabled=False):
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            yield
        finally:
            for backend, precision in zip(backends, precisions, strict=True):
                backend.fp32_precision = precision


def random_anchors(queries: int, anchors: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different anchors drawn at random for each query, (queries, count), int32; every
    set is as likely.

    Floyd's algorithm, for all queries at once: the j-th draw is from the first A − K + j anchors (j
    from 1), and one that is taken already gives way to the last of these, which cannot be. Never
    more than (queries, count) is held.
    """
    _check_count(count, anchors)
    found = torch.empty(queries, count, dtype=torch.int32, device=generator.device)
    for column in range(count):
        last = anchors - count + column
        drawn = torch.randint(
            last + 1, (queries,), generator=generator, dtype=torch.int32, device=generator.device
        )
        taken = (found[:, :column] == drawn[:, None]).any(1)
        found[:, column] = drawn.masked_fill_(taken, last)
    return found.cpu()


def uncached(size: int, cached: Tensor) -> Tensor:
    """Rows that are not among the cached ones, in order; on the CPU."""
    others = torch.ones(size, dtype=torch.bool)
    others[cached.cpu()] = False
    return others.nonzero()[:, 0]


def _check_count(count: int, anchors: int) -> None:
    if not 1 <= count <= anchors:
        raise ValueError(
            f"count must be between 1 and the number of anchors ({anchors}), got {count}"
        )


def check_neighbours(count: int, cached: int, remedy: str = "") -> None:
    """Refuse more neighbours than there are cached samples; ``remedy`` is another one."""
    if count > cached:
        raise ValueError(
            f"neighbours must be at most the number of cached samples ({cached}), got {count}; "
            "lower neighbours or "
            f"raise cache_fraction{remedy}"
        )


@dataclass(frozen=True)
class Borrowing:
    """How the neighbours of a sample that is not cached are chosen.

    Args:
        count: K.
        choice: ``"nearest"`` by cosine similarity, or ``"random"``.
        scope: with several processes, ``"all"`` cached samples, or the samples of the ``"shard"``.
    """

    count: int = 1
    choice: NeighbourChoice = "nearest"
    scope: NeighbourScope = "all"


@dataclass
class NeighbourIndex:
    """K_i for every sample and stream, as slots of a cache set; each stream has its own neighbours.

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
        *,
        device: torch.device | str | None = None,
        advance: Advance | None = None,
        anchors: Mapping[str, Tensor] | None = None,
        shard: Shard | None = None,
    ) -> NeighbourIndex:
        """Find the neighbours once, before training; (n, K) int32 slots on the CPU, zero for the
        cached samples.

        Args:
            vectors: per stream, the sentence vectors, (n, d).
            cached: rows of the samples that are cached, (A,), in the order of the cache's slots.
            count: K.
            choice: ``"nearest"`` by cosine similarity; ``"random"`` is the paper's R-K-NN ablation.
            generator: source of the random choice.
            device: where to compare the vectors; by default where they are.
            advance: called with the number of samples done since the last call; they are n − A for
                each stream.
            anchors: per stream, the vectors to choose from, in the order of the slots; by default
                those of ``cached``.
            shard: which samples these are; a random choice is the same however many processes make
                it.
        """
        size = len(next(iter(vectors.values())))
        shard = Shard(size) if shard is None else shard
        if anchors is None:
            anchors = {
                stream: vector[cached.to(vector.device)] for stream, vector in vectors.items()
            }
        lenders = len(next(iter(anchors.values())))
        elsewhere = f" in process {shard.rank}, or set neighbour_scope='all'"
        check_neighbours(count, lenders, elsewhere if shard.world > 1 else "")
        others = uncached(size, cached)
        slots = {}
        for stream, vector in vectors.items():
            if choice == "random":
                drawn = random_anchors(shard.size, lenders, count, generator)
                found = drawn[shard.rank :: shard.world][others]
                if advance is not None:
                    advance(len(others))
            else:
                found = nearest(
                    vector, anchors[stream], count, device=device, rows=others, advance=advance
                )
            none = torch.zeros(size, count, dtype=torch.int32)
            slots[stream] = none.index_copy_(0, others, found)
        return cls(slots)

    def to(self, device: torch.device) -> NeighbourIndex:
        """The same on another device: where ids are looked up in every step."""
        return NeighbourIndex({stream: slots.to(device) for stream, slots in self.slots.items()})

    def borrow(
        self, rows: Tensor, lender: PerturbationCache | SharedMeans, like: Perturbation
    ) -> Perturbation:
        """δ_{i,ℓ} = mean over j ∈ K_i of the mean over ℓ′ of δ_{j,ℓ′}, the same at every real
        position ℓ.

        Neighbours that were never written do not count; a sample without any gets zero.

        Args:
            rows: places of the samples of a batch in the index, (B,).
            lender: has the means of the neighbours.
            like: the shape of the batch.
        """
        values = {}
        for stream, zeros in like.values.items():
            slots = self.slots[stream][rows.to(self.slots[stream].device)].long()  # (B, K)
            written = (lender.written_at[slots] >= 0).sum(1, keepdim=True)  # (B, 1)
            mean = lender.means(stream, slots).sum(1) / written.clamp_min(1)  # (B, D)
            values[stream] = mean.to(zeros)[:, None, :] * like.masks[stream][..., None]
        return Perturbation(values, like.masks)
