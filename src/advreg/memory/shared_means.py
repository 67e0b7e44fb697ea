"""Sources of borrowed perturbations: a cache, or the caches of all processes together."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from advreg.memory.cache import PerturbationCache
from advreg.memory.exchange import gathered


class Lender(Protocol):
    """The mean rows of a set of cached samples, by slot; a
    :class:`~advreg.memory.cache.PerturbationCache` is one.
    """

    @property
    def written_at(self) -> Tensor:
        """Epoch in which each sample was last written, (A,); −1 is never."""

    @property
    def device(self) -> torch.device:
        """Where the means arrive."""

    @property
    def complete(self) -> bool:
        """Whether all samples have been written."""

    def means(self, stream: str, slots: Tensor) -> Tensor:
        """Mean row of each of these samples, (..., D)."""


class SharedMeans:
    """The mean rows of the whole cache set X, as all processes had them at the last :meth:`gather`.

    A borrowed perturbation needs one mean row of each neighbour and nothing else, so processes
    exchange |X|·D numbers per stream once per refresh; means change in no other epoch. Slots are
    places in the sorted cache set, as for one process.

    Args:
        cache: this process's own.
        cached: ids of the whole cache set, sorted, (A,).
    """

    def __init__(self, cache: PerturbationCache, cached: Tensor) -> None:
        self.cache = cache
        self._cached = cached.to(cache.device)
        self.written_at = torch.full_like(self._cached, -1)
        self.complete = False
        none = torch.empty(0, dtype=torch.int64, device=cache.device)
        self._means: dict[str, Tensor] = {}
        for stream in cache.sample_lengths:
            empty = cache.means(stream, none)
            self._means[stream] = empty.new_zeros(len(cached), *empty.shape[1:])

    def gather(self) -> None:
        """Bring the means of all processes; every one of them must call it."""
        self.written_at = self._whole(self.cache.written_at)
        every = torch.arange(len(self.cache.ids), device=self.device)
        for stream in self.cache.sample_lengths:
            self._means[stream] = self._whole(self.cache.means(stream, every))
        self.complete = bool((self.written_at >= 0).all())

    def _whole(self, mine: Tensor) -> Tensor:
        return assembled(mine, self._cached, self.cache.shard.world)

    @property
    def device(self) -> torch.device:
        return self.cache.device

    @property
    def nbytes(self) -> int:
        """Bytes of the means."""
        return sum(means.nbytes for means in self._means.values())

    def means(self, stream: str, slots: Tensor) -> Tensor:
        return self._means[stream][slots]


def assembled(mine: Tensor, cached: Tensor, world: int) -> Tensor:
    """Rows of the whole cache set in its order, (A, …), from the rows that each process has of its
    own samples.
    """
    whole = mine.new_empty(len(cached), *mine.shape[1:])
    for rank, part in enumerate(gathered(mine, world)):
        whole[cached % world == rank] = part
    return whole
