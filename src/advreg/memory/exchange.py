"""Exchanges between processes that train together; every process must call, in the same order."""

from __future__ import annotations

import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor

from advreg.memory.cache import PerturbationCache


def gathered(rows: Tensor, world: int) -> list[Tensor]:
    """The rows of every process, in the order of the processes; their numbers may differ.

    Args:
        rows: this process's, (a, …), on a device that the processes can exchange from.
        world: the number of processes; with one nothing is exchanged.
    """
    if world == 1:
        return [rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
    distributed.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    sizes = [int(count) for count in counts]
    most = max(sizes)
    parts = [rows.new_empty(most, *rows.shape[1:]) for _ in range(world)]
    # padded with rows of zeros: an exchange needs the same number from each process
    padding = (*[0] * (2 * (rows.dim() - 1)), 0, most - len(rows))
    distributed.all_gather(parts, F.pad(rows.contiguous(), padding))
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def summed(value: int, device: torch.device, world: int) -> int:
    """The sum of every process's number modulo 2⁶⁴."""
    signed = (value + 2**63) % 2**64 - 2**63
    total = torch.tensor([signed], dtype=torch.int64, device=device)
    return int(torch.cat(gathered(total, world)).sum()) % 2**64


def assembled(mine: Tensor, cached: Tensor, world: int) -> Tensor:
    """Rows of the whole cache set in its order, (A, …), from the rows that each process has of its
    own samples.
    """
    whole = mine.new_empty(len(cached), *mine.shape[1:])
    for rank, part in enumerate(gathered(mine, world)):
        whole[cached % world == rank] = part
    return whole


class SharedMeans:
    """The mean rows of the whole cache set X, as all processes had them at the last refresh.

    A borrowed perturbation needs one mean row of each neighbour and nothing else, so processes
    exchange |X|·D numbers per stream once per refresh; means change in no other epoch. Slots are
    places in the sorted cache set, as for one process.

    Args:
        cache: the cache of this process.
        cached: ids of the whole cache set, sorted, (A,).
    """

    def __init__(self, cache: PerturbationCache, cached: Tensor) -> None:
        self._cache, self._cached = cache, cached.to(cache.device)
        self._numbers = {
            name: value.new_zeros(len(cached), *value.shape[1:])
            for name, value in cache.numbers.items()
        }

    def gather(self) -> None:
        """Bring the means of all processes; every process must call it."""
        world = self._cache.shard.world
        for name, value in self._cache.numbers.items():
            self._numbers[name] = assembled(value[:-1], self._cached, world)

    @property
    def written_at(self) -> Tensor:
        """Epoch in which each sample was last written, (A,); −1 is never."""
        return self._numbers["written_at"]

    @property
    def nbytes(self) -> int:
        """Bytes of the means, and of an epoch for each sample."""
        return sum(value.nbytes for value in self._numbers.values())

    def means(self, stream: str, slots: Tensor) -> Tensor:
        """Mean row of each of these samples, (..., D); zeros where none was written."""
        return self._numbers[f"means.{stream}"][slots]
