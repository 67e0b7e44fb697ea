"""The perturbation cache: one ragged block of rows per cached sample, found by the sample's id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation, blank_padding
from advreg.core.shard import Shard
from advreg.memory.codec import CacheDtype, Codec, Parts, bytes_per_row, codec_for
from advreg.memory.deferred_check import LateCheck
from advreg.memory.prefetch import Bundle, Courier
from advreg.memory.reshard import under
from advreg.memory.tiers import Place


class RowStore:
    """One stream's rows: those of all cached samples end to end, and beside them the mean row of
    each.

    The last row belongs to nobody and stays zero: padding and uncached samples point at it.

    Args:
        lengths: rows of each cached sample, (A,).
        width: D.
        dtype: how rows are stored; means are float32 beside floats, and int8 beside integers.
        place: where rows are stored. The means are always near: uncached samples are served from
            them alone.
    """

    def __init__(self, lengths: Tensor, width: int, dtype: CacheDtype, place: Place) -> None:
        self.codec, self.mean_codec = codecs_for(dtype, width)
        self.place, self.width = place, width
        self.lengths = lengths.to(place.device, torch.int64)
        self.offsets = (
            self.lengths.cumsum(0) - self.lengths
        )  # (A,) where each sample's block begins
        count = int(lengths.sum()) + 1
        self.rows = empty_rows(count, self.codec, place)
        self.means = empty_rows(len(lengths), self.mean_codec, Place(place.device))

    @property
    def nbytes(self) -> int:
        return sum(
            part.numel() * part.element_size()
            for part in (*self.rows.values(), *self.means.values())
        )

    def index(self, slots: Tensor, mask: Tensor) -> Tensor:
        """Row of each token, (B, T), in the whole store."""
        return token_rows(self.offsets[slots.clamp_min(0)], slots >= 0, mask, self._nobody)

    def read(self, slots: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows laid out by the mask, (B, T, D), straight from where they are stored."""
        index = self.index(slots, mask)
        return self.codec.decode({name: part[index] for name, part in self.rows.items()}, dtype)

    def read_packed(
        self, packed: Mapping[str, Tensor], slots: Tensor, mask: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The same from the rows of this batch's samples alone, as :meth:`gather` packed them."""
        cached = slots >= 0
        lengths = torch.where(cached, self.lengths[slots.clamp_min(0)], 0)
        index = token_rows(lengths.cumsum(0) - lengths, cached, mask, packed["rows"].shape[0] - 1)
        return self.codec.decode({name: part[index] for name, part in packed.items()}, dtype)

    def gather(self, slots: Tensor) -> Parts:
        """The rows of these samples end to end, and after them the row that belongs to nobody; on
        the host.
        """
        slots = slots[slots >= 0]
        offsets, lengths = (values[slots] for values in self._on_host)
        jumps = offsets - (lengths.cumsum(0) - lengths)
        index = torch.repeat_interleave(jumps, lengths) + torch.arange(int(lengths.sum()))
        index = torch.cat([index, torch.tensor([self._nobody])])
        return {
            name: _select(part, index, self.place.device.type == "cuda")
            for name, part in self.rows.items()
        }

    def write(self, slots: Tensor, mask: Tensor, parts: Parts) -> None:
        """Store encoded rows (B, T, …) of cached samples. Padding is written to the row of nobody,
        and wiped off there: to pick the real tokens out, a GPU would have to be waited for."""
        index = self.index(slots, mask).flatten()
        for name, part in self.rows.items():
            part.index_copy_(0, index.to(part.device), parts[name].flatten(0, 1).to(part.device))
            part[self._nobody].zero_()

    def write_means(self, slots: Tensor, means: Tensor) -> None:
        """Store the mean rows, (B, D), of cached samples."""
        for name, part in self.mean_codec.encode(means).items():
            self.means[name].index_copy_(0, slots, part)

    def read_means(self, slots: Tensor) -> Tensor:
        """Mean rows of cached samples, (..., D)."""
        return self.mean_codec.decode(
            {name: part[slots] for name, part in self.means.items()}, torch.float32
        )

    def state(self) -> dict[str, Tensor]:
        means = {f"means.{name}": part for name, part in self.means.items()}
        return {**self.rows, **means, "lengths": self.lengths}

    @property
    def _nobody(self) -> int:
        return self.rows["rows"].shape[0] - 1

    @cached_property
    def _on_host(self) -> tuple[Tensor, Tensor]:
        return self.offsets.cpu(), self.lengths.cpu()


class PerturbationCache:
    """Cached perturbations δ_i, keyed by stable sample id: never by position in a batch.

    Args:
        ids: the cached samples' ids, (A,); all other ids are simply not cached.
        shard: the samples there are, n of them; or n itself, where one process has them all.
        lengths: per stream, the number of real tokens of each of these samples, (n,).
        widths: per stream, the width D of a row.
        dtype: how rows are stored: float32, float16, bfloat16, int8 or int4 (the last two with a
            scale per row).
        place: where the rows live; see :class:`~advreg.memory.tiers.Place`.
    """

    def __init__(
        self,
        ids: Tensor,
        shard: Shard | int,
        lengths: Mapping[str, Tensor],
        widths: Mapping[str, int],
        dtype: CacheDtype = "float32",
        place: Place | None = None,
    ) -> None:
        self.place = place or Place()
        self.shard = Shard(shard) if isinstance(shard, int) else shard
        device = self.device
        self.ids = ids.to(device, torch.int64)
        rows = self.shard.rows(self.ids)
        self.slot_of = torch.full((len(self.shard),), -1, dtype=torch.int32, device=device)
        self.slot_of[rows] = torch.arange(len(ids), dtype=torch.int32, device=device)
        self.written_at = torch.full(
            (len(ids),), -1, dtype=torch.int64, device=device
        )  # epoch; −1 is never
        self.sample_lengths = {
            stream: length.to(device, torch.int32) for stream, length in lengths.items()
        }
        self._store = {
            stream: RowStore(length[rows.to(length.device)], widths[stream], dtype, self.place)
            for stream, length in lengths.items()
        }
        self._complete = False
        self._check = LateCheck()
        self._courier = None if self.place.is_near else Courier(self._gather, device)

    @property
    def device(self) -> torch.device:
        """Where what is read arrives: the model's device, whatever the tier."""
        return self.place.device

    @property
    def nbytes(self) -> int:
        """Bytes held in rows and means."""
        return sum(store.nbytes for store in self._store.values())

    def slots(self, ids: Tensor) -> Tensor:
        """Where each sample lives in the cache, (B,); −1 for a sample that is not cached."""
        self._require(ids)
        return self.slot_of[self.shard.rows(ids.to(self.device))].long()

    def known(self, ids: Tensor) -> Tensor:
        """Which samples have a δ in the cache, (B,)."""
        slots = self.slots(ids)
        return self._written(slots) >= 0

    def prefetch(self, ids: Tensor) -> None:
        """Start to bring the rows of these samples, unless they are on the device."""
        if self._courier is not None:
            self._courier.prefetch(ids)

    @property
    def complete(self) -> bool:
        """Has every cached sample been written? Once it has, the device is not asked again."""
        if not self._complete:
            self._complete = bool((self.written_at >= 0).all())
        return self._complete

    def find(self, ids: Tensor, like: Perturbation, at_once: bool = True) -> Tensor:
        """As :meth:`slots`, for a batch whose lengths are checked as well: its data must be what
        the cache is for.

        Args:
            ids: of the batch, (B,).
            like: its shape.
            at_once: wait for the check; else a GPU's answer is looked at in the next step, or by
                :meth:`settle`.
        """
        near = ids.to(self.device)
        rows = self.shard.rows(near).clamp(0, len(self.shard) - 1)
        fits = self.shard.ids_at(rows) == near
        for stream, mask in like.masks.items():
            fits = fits & (mask.sum(1) == self.sample_lengths[stream][rows])
        self._check.put(fits.all(), lambda: self._require_data(ids, like.masks))
        if at_once:
            self._check.settle()
        return self.slot_of[rows].long()

    def settle(self) -> None:
        """Look at the last check that was not waited for."""
        self._check.settle()

    def read(self, ids: Tensor, like: Perturbation, slots: Tensor | None = None) -> Perturbation:
        """δ_i of every cached sample of a batch, laid out by its mask; zero for the others.

        Args:
            ids: of the batch, (B,).
            like: its shape.
            slots: what :meth:`find` gave for it, if it was asked before.
        """
        return self._read(ids, self.find(ids, like) if slots is None else slots, like)

    def recall(self, ids: Tensor) -> Perturbation:
        """δ_i of these samples in float32, real tokens first: for those who have no batch of them
        at hand.
        """
        rows = self.shard.rows(ids.to(self.device))
        masks, zeros = {}, {}
        for stream, store in self._store.items():
            lengths = self.sample_lengths[stream][rows]
            masks[stream] = torch.arange(int(lengths.max()), device=self.device) < lengths[:, None]
            zeros[stream] = torch.zeros(*masks[stream].shape, store.width, device=self.device)
        return self.read(ids, Perturbation(zeros, masks))

    def write(
        self, ids: Tensor, delta: Perturbation, ema: float, ball: Ball, epoch: int
    ) -> Perturbation:
        """Blend the cached samples' new Δ into the cache and return what each sample is to be
        trained on.

        A cached sample gets Π(α · old + (1 − α) · Δ), or Δ as it is when it has no old value; an
        uncached one keeps its own Δ.
        """
        slots = self.find(ids, delta)
        old = self._read(ids, slots, delta)
        blend = old.map(lambda values, _: ema * values).plus(delta, 1 - ema)
        fresh = ball.project(blend).where(self._written(slots) >= 0, delta)
        self._require_sound(ids, delta, fresh, ball)
        if len(self.ids) == 0:
            return delta
        if self._courier is not None:
            self._courier.forget(ids)
        cached = torch.nonzero(slots >= 0)[:, 0]
        slots = slots[cached]
        for stream, values in fresh.values.items():
            self._put(stream, slots, values[cached], delta.masks[stream][cached])
        self.written_at.index_fill_(0, slots, epoch)
        return fresh

    def means(self, stream: str, slots: Tensor) -> Tensor:
        """Mean row of each of these cached samples, (..., D)."""
        return self._store[stream].read_means(slots)

    def stored_means(self, stream: str) -> tuple[Codec, Parts]:
        """The mean rows of all cached samples as they are stored, and how."""
        return self._store[stream].mean_codec, self._store[stream].means

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that changes in training, as tensors."""
        state = {"ids": self.ids, "written_at": self.written_at}
        for stream, store in self._store.items():
            state |= {f"{stream}.{name}": part for name, part in store.state().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the saved values over, after checking that they belong to this data and these cached
        samples.
        """
        mine = self.state_dict()
        if set(state) != set(mine):
            raise ValueError(
                f"the saved cache holds {sorted(state)}, this one {sorted(mine)}; is it another "
                "model's?"
            )
        for name, value in mine.items():
            saved = state[name]
            if saved.shape != value.shape or saved.dtype != value.dtype:
                raise ValueError(
                    f"the saved cache's {name} is {tuple(saved.shape)} of {saved.dtype}, this run "
                    "needs "
                    f"{tuple(value.shape)} of {value.dtype}; resume with the saved run's data and "
                    "cache options"
                )
            fixed = name == "ids" or name.endswith(".lengths")
            if fixed and not torch.equal(saved.to(value.device), value):
                raise ValueError(
                    f"the saved cache's {name} differ from this run's; resume with the same data "
                    "and seed"
                )
        for name, value in mine.items():
            value.copy_(state[name])
        self._complete = False

    def _read(self, ids: Tensor, slots: Tensor, like: Perturbation) -> Perturbation:
        if (
            len(self.ids) == 0
        ):  # the cache set is small, and of many processes this one has none of it
            return like.map(lambda values, _: torch.zeros_like(values))
        if self._courier is None:
            values = {
                stream: self._store[stream].read(slots, like.masks[stream], zeros.dtype)
                for stream, zeros in like.values.items()
            }
            return Perturbation(values, like.masks)
        bundle = self._courier.bring(ids)
        values = {
            stream: self._store[stream].read_packed(
                under(f"{stream}.", bundle), slots, like.masks[stream], zeros.dtype
            )
            for stream, zeros in like.values.items()
        }
        return Perturbation(values, like.masks)

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

    def _put(self, stream: str, slots: Tensor, values: Tensor, mask: Tensor) -> None:
        store = self._store[stream]
        parts = store.codec.encode(values)
        store.write(slots, mask, parts)
        stored = blank_padding(
            store.codec.decode(parts, torch.float32), mask
        )  # (B, T, D), as it will be read
        store.write_means(slots, stored.sum(1) / mask.sum(1, keepdim=True).clamp_min(1))

    def _written(self, slots: Tensor) -> Tensor:
        """Epoch in which these slots were last written, (B,); −1 for never, and for samples that
        are not cached.
        """
        if len(self.ids) == 0:
            return slots
        return torch.where(slots >= 0, self.written_at[slots.clamp_min(0)], -1)

    def _require(self, ids: Tensor) -> None:
        shard = self.shard
        for stranger in ids[~shard.owns(ids)][:1].tolist():
            if 0 <= stranger < shard.size:
                raise IndexError(
                    f"sample id {stranger} belongs to process {stranger % shard.world} of "
                    f"{shard.world}, but came to "
                    f"process {shard.rank}; take batches from advreg.hf.sharding.ShardBatches, as "
                    "the trainers do"
                )
            raise IndexError(
                f"sample id {stranger} is not in the data the method was prepared with "
                f"(0–{shard.size - 1}); was the dataset changed after prepare()?"
            )

    def _require_data(self, ids: Tensor, masks: Mapping[str, Tensor]) -> None:
        """Ids and lengths must be those of the data the cache was made for."""
        self._require(ids)
        rows = self.shard.rows(ids.to(self.device))
        for stream, mask in masks.items():
            now, then = mask.sum(1), self.sample_lengths[stream][rows]
            for which in (now != then).nonzero()[:1, 0].tolist():
                raise ValueError(
                    f"sample id {int(ids[which])} has {int(now[which])} tokens in stream "
                    f"'{stream}', but had "
                    f"{int(then[which])} when the method was prepared; the data must not change "
                    "during training "
                    "(random augmentation or truncation? then use cache-free methods such as r3f "
                    "or smart)"
                )

    def _require_sound(
        self, ids: Tensor, delta: Perturbation, fresh: Perturbation, ball: Ball
    ) -> None:
        """A δ that is not finite, or outside its ball, must never reach the cache: it would come
        back in every epoch.

        The device is waited for once, for all answers together.
        """
        finite = {
            stream: self._stays_finite(stream, values) for stream, values in delta.values.items()
        }
        inside = ball.holds(fresh)
        if bool(torch.stack([*finite.values(), inside]).all()):
            return
        for stream, fine in finite.items():
            if not bool(fine.all()):
                dtype = self._store[stream].codec.layout()["rows"][1]
                raise FloatingPointError(
                    f"the perturbation of stream '{stream}' is not finite in {dtype} for sample "
                    "ids "
                    f"{ids.to(fine.device)[~fine].tolist()}; nothing was cached. Lower step_size "
                    "or radius, or train "
                    "in bf16 or fp32"
                )
        raise ValueError(
            f"the perturbation of sample ids {ids.to(inside.device)[~inside].tolist()} is outside "
            "the ball of radius "
            f"{ball.radius} ({ball.norm} per {ball.scope}); nothing was cached. Project it before "
            "it is written"
        )

    def _stays_finite(self, stream: str, values: Tensor) -> Tensor:
        """Which samples' δ are finite, and are so as they will be stored, (B,); float16 overflows
        at 65504.
        """
        codec = self._store[stream].codec
        stored = codec.decode(codec.encode(values), torch.float32)
        return (torch.isfinite(values) & torch.isfinite(stored)).flatten(1).all(1)


def cache_bytes(
    tokens: Mapping[str, int], samples: int, widths: Mapping[str, int], dtype: CacheDtype
) -> int:
    """What a cache of this many samples with this many real tokens in each stream takes."""
    return sum(
        (tokens[stream] + 1) * bytes_per_row(rows) + samples * bytes_per_row(means)
        for stream, (rows, means) in {
            stream: codecs_for(dtype, width) for stream, width in widths.items()
        }.items()
    )


def codecs_for(dtype: CacheDtype, width: int) -> tuple[Codec, Codec]:
    """How rows are stored, and how their means are: the means serve many samples, so they are never
    in 4 bits.
    """
    return codec_for(dtype, width), codec_for(
        "int8" if dtype in ("int8", "int4") else "float32", width
    )


def empty_rows(count: int, codec: Codec, place: Place) -> Parts:
    """Room for this many rows, all zero."""
    return {
        name: place.zeros((count, *shape), dtype) for name, (shape, dtype) in codec.layout().items()
    }


def token_rows(begins: Tensor, cached: Tensor, mask: Tensor, nobody: int) -> Tensor:
    """Row of each token, (B, T): the k-th *real* token reads the k-th row, whichever side the
    padding is on.

    Args:
        begins: where the block of each sample begins, (B,).
        cached: which samples have one, (B,).
        mask: real tokens, (B, T).
        nobody: the row for all other tokens.
    """
    position = mask.cumsum(1) - 1
    return torch.where(mask & cached[:, None], begins[:, None] + position, nobody)


def _select(rows: Tensor, index: Tensor, pinned: bool) -> Tensor:
    """``rows[index]``, into pinned memory for a GPU to copy from."""
    chosen = torch.empty((len(index), *rows.shape[1:]), dtype=rows.dtype, pin_memory=pinned)
    return torch.index_select(rows, 0, index, out=chosen)
