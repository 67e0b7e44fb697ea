"""The rows of a run with one number of processes, resharded to another number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from advreg.core.shard import Shard

State = dict[str, Tensor]  # what SampleRows.state_dict() gives
T = TypeVar("T")


def part_of(rows: Mapping[str, Tensor], shard: Shard) -> State:
    """Those samples that belong to this shard.

    Args:
        rows: what a process had, as :meth:`~advreg.memory.rows.SampleRows.state_dict` gives it.
        shard: of a process of a run with another number of them.
    """
    return chosen(rows, shard.owns(rows["ids"]).nonzero()[:, 0])


def joined(parts: Sequence[Mapping[str, Tensor]]) -> State:
    """The samples of all parts, in the order of their ids."""
    state = {}
    for name in parts[0]:
        if _stream_of(parts[0], name) is None:
            state[name] = torch.cat([part[name] for part in parts])
        else:  # the padding comes last, once
            state[name] = torch.cat([*(part[name][:-1] for part in parts), parts[0][name][-1:]])
    return chosen(state, state["ids"].argsort())


def chosen(rows: Mapping[str, Tensor], slots: Tensor) -> State:
    """These samples, in this order."""
    state = {}
    for name, values in rows.items():
        stream = _stream_of(rows, name)
        index = slots if stream is None else _rows(rows[f"{stream}.lengths"], slots)
        state[name] = values[index]
    return state


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """The entries whose name starts with the prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def _rows(lengths: Tensor, slots: Tensor) -> Tensor:
    """The rows of these samples end to end, and after them the padding."""
    ends = lengths.cumsum(0)
    taken = lengths[slots]
    jumps = (ends - lengths)[slots] - (taken.cumsum(0) - taken)
    index = torch.repeat_interleave(jumps, taken) + torch.arange(int(taken.sum()))
    return torch.cat([index, lengths.sum()[None]])


def _stream_of(rows: Mapping[str, Tensor], name: str) -> str | None:
    """The stream whose rows these are; ``None`` if there is one entry per sample."""
    stream, _, field = name.partition(".")
    return stream if field != "lengths" and f"{stream}.lengths" in rows else None
