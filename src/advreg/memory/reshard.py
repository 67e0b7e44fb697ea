"""The caches of a run with one number of processes, dealt to another number: no perturbation is
lost or changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from advreg.core.shard import Shard

State = dict[str, Tensor]  # what PerturbationCache.state_dict() gives

T = TypeVar("T")
_PER_SAMPLE = ("ids", "written_at")


def part_of(cache: Mapping[str, Tensor], shard: Shard) -> State:
    """Those samples of a cache that belong to this shard.

    Args:
        cache: what a process had, as :meth:`~advreg.memory.cache.PerturbationCache.state_dict`
            gives it.
        shard: of a process of a run with another number of them.
    """
    return chosen(cache, shard.owns(cache["ids"]).nonzero()[:, 0])


def joined(parts: Sequence[Mapping[str, Tensor]]) -> State:
    """One cache of several, in the order of the samples' ids."""
    state = {}
    for name in parts[0]:
        if _is_per_sample(name):
            state[name] = torch.cat([part[name] for part in parts])
        else:  # the row that belongs to nobody comes last, once
            state[name] = torch.cat([*(part[name][:-1] for part in parts), parts[0][name][-1:]])
    return chosen(state, state["ids"].argsort())


def chosen(cache: Mapping[str, Tensor], slots: Tensor) -> State:
    """These samples of a cache, in this order."""
    state = {}
    for name, values in cache.items():
        index = (
            slots if _is_per_sample(name) else _rows(cache[f"{name.split('.')[0]}.lengths"], slots)
        )
        state[name] = values[index]
    return state


def _rows(lengths: Tensor, slots: Tensor) -> Tensor:
    """The rows of these samples end to end, and after them the row that belongs to nobody."""
    ends = lengths.cumsum(0)
    taken = lengths[slots]
    jumps = (ends - lengths)[slots] - (taken.cumsum(0) - taken)
    index = torch.repeat_interleave(jumps, taken) + torch.arange(int(taken.sum()))
    return torch.cat([index, lengths.sum()[None]])


def _is_per_sample(name: str) -> bool:
    """Has this part of a cache one entry per sample, and not one per token?"""
    return name in _PER_SAMPLE or name.endswith(".lengths") or ".means." in name


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """The entries whose name starts with the prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }
