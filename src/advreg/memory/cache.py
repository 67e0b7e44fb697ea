"""The perturbation cache: a row of δ for each token of a cached sample, and a mean row of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation, blank_padding
from advreg.core.shard import Shard
from advreg.memory.rows import Fields, SampleRows, row_bytes
from advreg.memory.tiers import Place

CacheDtype = Literal["float32", "float16", "bfloat16"]


class PerturbationCache(SampleRows):
    """Cached perturbations δ_i, keyed by stable sample id: never by position in a batch.

    Args:
        ids: the cached samples' ids, (A,); all other ids are simply not cached.
        shard: the samples there are, n of them; or n itself, where one process has them all.
        lengths: per stream, the number of real tokens of each of these samples, (n,).
        widths: per stream, the width D of a row.
        dtype: of the rows; means are float32, and always on the device: uncached samples are served
            from them alone.
        place: where the rows live.
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
        super().__init__(
            ids,
            Shard(shard) if isinstance(shard, int) else shard,
            lengths,
            {stream: row_of(widths[stream], dtype) for stream in lengths},
            place or Place(),
        )
        self.dtype: torch.dtype = getattr(torch, dtype)
        size = len(ids) + 1
        self.numbers = {
            "written_at": torch.full((size,), -1, dtype=torch.int64, device=self.device),
            **{
                f"means.{stream}": torch.zeros(size, widths[stream], device=self.device)
                for stream in lengths
            },
        }

    @property
    def written_at(self) -> Tensor:
        """Epoch in which each cached sample was last written, (A,); −1 is never."""
        return self.numbers["written_at"][:-1]

    def find(self, ids: Tensor, like: Perturbation, at_once: bool = True) -> Tensor:
        """Where each sample of a batch is stored, (B,); −1 for a sample that is not. Ids and
        lengths must match the data that the cache was made for.

        Args:
            ids: of the batch, (B,).
            like: its shape.
            at_once: wait for the check; else its result is read in the next step, or by
                :meth:`settle`.
        """
        rows, fits = self.locate(ids)
        for stream, mask in like.masks.items():
            fits = fits & (mask.sum(1) == self.sample_lengths[stream][rows])
        self._check.put(fits.all(), lambda: self._require_data(ids, like.masks))
        if at_once:
            self._check.settle()
        return self.slot_of[rows].long()

    def read(self, ids: Tensor, like: Perturbation, slots: Tensor | None = None) -> Perturbation:
        """δ_i of every cached sample of a batch, laid out by its mask; zero for the others.

        Args:
            ids: of the batch, (B,).
            like: its shape.
            slots: what :meth:`find` gave for it, if it was asked before.
        """
        found = self.rows(ids, self.find(ids, like) if slots is None else slots, like.masks)
        values = {stream: found[stream]["rows"].to(z.dtype) for stream, z in like.values.items()}
        return Perturbation(values, like.masks)

    def recall(self, ids: Tensor) -> Perturbation:
        """δ_i of these samples in float32, real tokens first, in a batch of their own."""
        rows = self.shard.rows(ids.to(self.device))
        masks, zeros = {}, {}
        for stream, lengths in self.sample_lengths.items():
            longest, width = int(lengths[rows].max()), self.means(stream, rows[:0]).shape[-1]
            masks[stream] = torch.arange(longest, device=self.device) < lengths[rows][:, None]
            zeros[stream] = torch.zeros(*masks[stream].shape, width, device=self.device)
        return self.read(ids, Perturbation(zeros, masks))

    def write(
        self, ids: Tensor, delta: Perturbation, ema: float, ball: Ball, epoch: int
    ) -> Perturbation:
        """Blend the cached samples' new Δ into the cache and return the δ to train on.

        A cached sample gets Π(α · old + (1 − α) · Δ), or Δ unchanged when it has no old value; an
        uncached one keeps its own Δ.
        """
        slots = self.find(ids, delta)
        old = self.read(ids, delta, slots)
        blend = old.map(lambda values, _: ema * values).plus(delta, 1 - ema)
        written = self.numbers["written_at"][slots] >= 0
        fresh = ball.project(blend).where(written, delta)
        self._require_sound(ids, delta, fresh, ball)
        if len(self.ids) == 0:
            return delta
        self.forget(ids)
        cached = torch.nonzero(slots >= 0)[:, 0]
        slots = slots[cached]
        for stream, values in fresh.values.items():
            self._put(stream, slots, values[cached], delta.masks[stream][cached])
        self.numbers["written_at"].index_fill_(0, slots, epoch)
        return fresh

    def means(self, stream: str, slots: Tensor) -> Tensor:
        """Mean row of each of these cached samples, (..., D); zeros where none was written."""
        return self.numbers[f"means.{stream}"][slots]

    def _put(self, stream: str, slots: Tensor, values: Tensor, mask: Tensor) -> None:
        rows = values.to(self.dtype)
        self._store[stream].write(slots, mask, {"rows": rows})
        stored = blank_padding(rows.float(), mask)  # (B, T, D), as it will be read
        means = stored.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        self.numbers[f"means.{stream}"].index_copy_(0, slots, means)

    def _require_data(self, ids: Tensor, masks: Mapping[str, Tensor]) -> None:
        """Ids and lengths must match the data the cache was made for."""
        self._require(ids)
        rows = self.shard.rows(ids.to(self.device))
        for stream, mask in masks.items():
            now, then = mask.sum(1), self.sample_lengths[stream][rows]
            for which in (now != then).nonzero()[:1, 0].tolist():
                raise ValueError(
                    f"sample id {int(ids[which])} has {int(now[which])} tokens in stream "
                    f"'{stream}', but had {int(then[which])} when the method was prepared; the "
                    "data must not change during training (random augmentation or truncation? "
                    "then use cache-free methods such as r3f or smart)"
                )

    def _require_sound(
        self, ids: Tensor, delta: Perturbation, fresh: Perturbation, ball: Ball
    ) -> None:
        """Refuse a δ that is not finite, or outside its ball: it would come back in every epoch.

        The device is waited for once, for all answers together.
        """
        finite = {stream: self._stays_finite(values) for stream, values in delta.values.items()}
        inside = ball.holds(fresh)
        if bool(torch.stack([*finite.values(), inside]).all()):
            return
        for stream, fine in finite.items():
            if not bool(fine.all()):
                raise FloatingPointError(
                    f"the perturbation of stream '{stream}' is not finite in {self.dtype} for "
                    f"sample ids {ids.to(fine.device)[~fine].tolist()}; nothing was cached. Lower "
                    "step_size or radius, or train in bf16 or fp32"
                )
        raise ValueError(
            f"the perturbation of sample ids {ids.to(inside.device)[~inside].tolist()} is outside "
            f"the ball of radius {ball.radius} ({ball.norm} per {ball.scope}); nothing was cached. "
            "Project it before it is written"
        )

    def _stays_finite(self, values: Tensor) -> Tensor:
        """Which samples' δ are finite in the precision of the cache, (B,)."""
        return torch.isfinite(values.to(self.dtype)).flatten(1).all(1)


def row_of(width: int, dtype: CacheDtype) -> Fields:
    """What a row of a stream holds."""
    return {"rows": (width, getattr(torch, dtype))}


def cache_bytes(
    tokens: Mapping[str, int], samples: int, widths: Mapping[str, int], dtype: CacheDtype
) -> int:
    """What a cache of this many samples with this many real tokens in each stream takes."""
    rows = sum((tokens[name] + 1) * row_bytes(row_of(widths[name], dtype)) for name in tokens)
    numbers = torch.int64.itemsize + sum(4 * widths[name] for name in tokens)
    return rows + (samples + 1) * numbers
