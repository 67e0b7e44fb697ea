"""Rows of samples on any tier: a row for each token or item of a sample, found by the sample's
id.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.shard import Shard
from advreg.memory.deferred_check import LateCheck
from advreg.memory.memory import under
from advreg.memory.prefetch import Bundle, Courier
from advreg.memory.tiers import Place

Fields = Mapping[str, tuple[int, torch.dtype]]  # numbers in a row and their type, by name
Parts = Mapping[str, Tensor]  # rows by the name of their field
State = dict[str, Tensor]  # what SampleRows.state_dict() gives


class RowStore:
    """Rows of samples end to end. A last row of zeros is the padding: all other tokens point at it.

    Args:
        lengths: rows of each sample, (A,).
        fields: what a row holds.
        place: where rows are stored.
    """

    def __init__(self, lengths: Tensor, fields: Fields, place: Place) -> None:
        self.place = place
        # each ends with a spare entry, for samples that are not stored
        self._lengths = F.pad(lengths.to(place.device, torch.int64), (0, 1))
        self._offsets = self._lengths.cumsum(0) - self._lengths
        count = int(lengths.sum()) + 1
        self.rows = {
            name: place.zeros((count, width), dtype) for name, (width, dtype) in fields.items()
        }

    @property
    def lengths(self) -> Tensor:
        """Rows of each sample, (A,)."""
        return self._lengths[:-1]

    @property
    def padding(self) -> int:
        """The row of zeros."""
        return len(next(iter(self.rows.values()))) - 1

    def read(self, slots: Tensor, mask: Tensor, packed: Parts | None = None) -> Parts:
        """The rows laid out by the mask, (B, T, …).

        Args:
            slots: where each sample is stored, (B,); −1 where it is not.
            mask: real tokens, (B, T).
            packed: the rows of these samples alone, as :meth:`gather` packed them; ``None``: read
                from where they are stored.
        """
        lengths, rows = self._lengths[slots], self.rows if packed is None else packed
        begins = self._offsets[slots] if packed is None else lengths.cumsum(0) - lengths
        padding = len(next(iter(rows.values()))) - 1
        index = token_rows(begins, slots >= 0, mask, padding)
        return {name: values[index] for name, values in rows.items()}

    def gather(self, slots: Tensor) -> Bundle:
        """The rows of these samples end to end, and after them the padding; on the host."""
        index = row_index(*self._on_host, slots[slots >= 0])
        return {
            name: _select(rows, index, self.place.device.type == "cuda")
            for name, rows in self.rows.items()
        }

    def take(self, slots: Tensor, saved: Parts, theirs: Tensor) -> None:
        """Copy the rows of some samples from a saved store, in which they have the slots
        ``theirs``.
        """
        mine = row_index(self._offsets, self._lengths, slots)
        lengths = F.pad(saved["lengths"], (0, 1))
        index = row_index(lengths.cumsum(0) - lengths, lengths, theirs)
        for name, rows in self.rows.items():
            rows[mine.to(rows.device)] = saved[name][index].to(rows.device)

    def write(self, slots: Tensor, mask: Tensor, parts: Parts) -> None:
        """Store rows (B, T, …). What has no row is written to the padding, which is cleared: to
        pick the others out, the host would wait for a GPU.
        """
        index = token_rows(self._offsets[slots], slots >= 0, mask, self.padding).flatten()
        for name, rows in self.rows.items():
            values = parts[name].flatten(0, 1).to(rows.device, rows.dtype)
            rows.index_copy_(0, index.to(rows.device), values)
            rows[-1].zero_()

    @cached_property
    def _on_host(self) -> tuple[Tensor, Tensor]:
        return self._offsets.cpu(), self._lengths.cpu()


class SampleRows:
    """Rows of some samples in each stream, and numbers for each of these samples.

    Args:
        ids: ids of the stored samples, (A,); all other samples have no rows.
        shard: the samples of this process.
        lengths: per stream, the rows of each sample of the shard, (n,).
        fields: per stream, what a row holds.
        place: where rows are stored.
    """

    def __init__(
        self,
        ids: Tensor,
        shard: Shard,
        lengths: Mapping[str, Tensor],
        fields: Mapping[str, Fields],
        place: Place,
    ) -> None:
        self.place, self.shard = place, shard
        self.ids = ids.to(self.device, torch.int64)
        at = shard.rows(self.ids)
        self.slot_of = torch.full((len(shard),), -1, dtype=torch.int32, device=self.device)
        self.slot_of[at] = torch.arange(len(ids), dtype=torch.int32, device=self.device)
        self.sample_lengths = {
            stream: length.to(self.device, torch.int32) for stream, length in lengths.items()
        }
        self._store = {
            stream: RowStore(length[at.to(length.device)], fields[stream], place)
            for stream, length in lengths.items()
        }
        self.numbers: dict[str, Tensor] = {}  # (A + 1, …); the last entry is a spare
        self._check = LateCheck()
        self._courier = None if place.is_near else Courier(self._gather, self.device)

    @property
    def device(self) -> torch.device:
        """The model's device, where rows arrive from any tier."""
        return self.place.device

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, and of the numbers for each sample."""
        parts = [rows for store in self._store.values() for rows in store.rows.values()]
        return sum(part.nbytes for part in (*parts, *self.numbers.values()))

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Places of samples in the shard, (B,), and which of them belong to it; the host does not
        wait.
        """
        near = ids.to(self.device)
        at = self.shard.rows(near).clamp(0, len(self.shard) - 1)
        return at, self.shard.ids_at(at) == near

    def settle(self) -> None:
        """Read the result of the last check that was not waited for."""
        self._check.settle()

    def prefetch(self, ids: Tensor) -> None:
        """Start to copy the rows of these samples to the device, unless they are there."""
        if self._courier is not None:
            self._courier.prefetch(ids)

    def rows(self, ids: Tensor, slots: Tensor, masks: Mapping[str, Tensor]) -> dict[str, Parts]:
        """The rows of a batch in each stream, laid out by the masks; zeros where there are none."""
        if self._courier is None:
            return {name: store.read(slots, masks[name]) for name, store in self._store.items()}
        bundle = self._courier.bring(ids)
        return {
            name: store.read(slots, masks[name], under(f"{name}.", bundle))
            for name, store in self._store.items()
        }

    def forget(self, ids: Tensor) -> None:
        """Discard prefetched rows of these samples, which are about to change."""
        if self._courier is not None:
            self._courier.forget(ids)

    def _gather(self, ids: Tensor) -> Bundle:
        """The rows of these samples in every stream, on the host."""
        slots = self._slot_of_on_host[self.shard.rows(ids)].long()
        return {
            f"{stream}.{name}": part
            for stream, store in self._store.items()
            for name, part in store.gather(slots).items()
        }

    @cached_property
    def _slot_of_on_host(self) -> Tensor:
        return self.slot_of.cpu()

    # ---- checkpoints

    def state_dict(self) -> State:
        """The content as tensors."""
        state = {"ids": self.ids, **{name: value[:-1] for name, value in self.numbers.items()}}
        for stream, store in self._store.items():
            state |= {f"{stream}.{name}": rows for name, rows in store.rows.items()}
            state[f"{stream}.lengths"] = store.lengths
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], whole: bool = True) -> int:
        """Take over saved values, after checking that they belong to this data and these samples.

        Args:
            state: what :meth:`state_dict` gave.
            whole: the state is of exactly these samples; else of any others too, as with another
                number of processes.

        Returns:
            The number of samples taken over.
        """
        self._require_same_form(state, whole)
        ids = state["ids"].to(self.device)
        theirs = (torch.ones_like(ids) if whole else self.shard.owns(ids)).nonzero()[:, 0]
        slots = theirs if whole else self.slot_of[self.shard.rows(ids[theirs])].long()
        mine = self.state_dict()
        for name in ("ids", *(f"{stream}.lengths" for stream in self._store)):
            saved = state[name].to(self.device)[theirs]
            if bool((slots < 0).any()) or not torch.equal(saved, mine[name][slots]):
                raise ValueError(
                    f"the saved cache's {name} differ from this run's; resume with the same data "
                    "and seed"
                )
        if whole:
            for name, value in mine.items():
                value.copy_(state[name])
            return len(slots)
        theirs = theirs.to(state["ids"].device)
        for name, value in self.numbers.items():
            value[slots] = state[name][theirs].to(self.device)
        for name, store in self._store.items():
            store.take(slots, under(f"{name}.", state), theirs)
        return len(slots)

    def _require_same_form(self, state: Mapping[str, Tensor], whole: bool) -> None:
        mine, axes = self.state_dict(), slice(0 if whole else 1, None)
        if set(state) != set(mine):
            raise ValueError(
                f"the saved cache holds {sorted(state)}, this one {sorted(mine)}; is it another "
                "model's?"
            )
        for name, value in mine.items():
            saved = state[name]
            if saved.shape[axes] != value.shape[axes] or saved.dtype != value.dtype:
                raise ValueError(
                    f"the saved cache's {name} is {tuple(saved.shape)} of {saved.dtype}, this run "
                    f"needs {tuple(value.shape)} of {value.dtype}; resume with the saved run's "
                    "data and cache options"
                )

    # ---- whose samples these are

    def _require(self, ids: Tensor) -> None:
        shard = self.shard
        for unknown in ids[~shard.owns(ids)][:1].tolist():
            if 0 <= unknown < shard.size:
                raise IndexError(
                    f"sample id {unknown} belongs to process {unknown % shard.world} of "
                    f"{shard.world}, but came to process {shard.rank}; take batches from "
                    "advreg.hf.sharding.ShardBatches, as the trainers do"
                )
            raise IndexError(
                f"sample id {unknown} is not in the data the method was prepared with "
                f"(0–{shard.size - 1}); was the dataset changed after prepare()?"
            )


def row_bytes(fields: Fields) -> int:
    """What one row takes."""
    return sum(width * dtype.itemsize for width, dtype in fields.values())


def token_rows(begins: Tensor, stored: Tensor, mask: Tensor, padding: int) -> Tensor:
    """Row of each token, (B, T): the k-th *real* token reads the k-th row, whichever side the
    padding is on.

    Args:
        begins: where the block of each sample begins, (B,).
        stored: which samples have one, (B,).
        mask: real tokens, (B, T).
        padding: the row for all other tokens.
    """
    position = mask.cumsum(1) - 1
    return torch.where(mask & stored[:, None], begins[:, None] + position, padding)


def row_index(offsets: Tensor, lengths: Tensor, slots: Tensor) -> Tensor:
    """The rows of these samples end to end, and after them the padding, where the spare entry
    begins.
    """
    taken = lengths[slots]
    jumps = offsets[slots] - (taken.cumsum(0) - taken)
    places = torch.arange(int(taken.sum()), device=taken.device)
    index = torch.repeat_interleave(jumps, taken) + places
    return torch.cat([index, offsets[-1:]])


def _select(rows: Tensor, index: Tensor, pinned: bool) -> Tensor:
    """``rows[index]``, into pinned memory for a GPU to copy from."""
    chosen = torch.empty((len(index), *rows.shape[1:]), dtype=rows.dtype, pin_memory=pinned)
    return torch.index_select(rows, 0, index, out=chosen)
