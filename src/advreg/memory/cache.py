"""The perturbation cache: one ragged block of rows per cached sample, found by the sample's id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation, blank_padding


@dataclass
class _Rows:
    """One stream's store: the rows of all cached samples end to end, and beside them the mean row of each.

    The last row of ``rows`` belongs to nobody and stays zero: padding and uncached samples point at it.
    """

    offsets: Tensor  # (A,) where each sample's block begins
    lengths: Tensor  # (A,)
    rows: Tensor  # (Σ lengths + 1, D)
    means: Tensor  # (A, D)

    @classmethod
    def empty(cls, lengths: Tensor, width: int, dtype: torch.dtype, device: torch.device) -> _Rows:
        lengths = lengths.to(device=device, dtype=torch.int64)
        offsets = lengths.cumsum(0) - lengths
        rows = torch.zeros(int(lengths.sum()) + 1, width, dtype=dtype, device=device)
        means = torch.zeros(lengths.shape[0], width, dtype=torch.float32, device=device)
        return cls(offsets, lengths, rows, means)

    def index(self, slots: Tensor, mask: Tensor) -> Tensor:
        """Row of each token, (B, T): the k-th *real* token reads the k-th row, whichever side the padding is on."""
        nobody = self.rows.shape[0] - 1
        position = mask.long().cumsum(1) - 1
        rows = self.offsets[slots.clamp_min(0)][:, None] + position
        return torch.where(mask & (slots >= 0)[:, None], rows, nobody)


class PerturbationCache:
    """Cached perturbations δ_i, keyed by stable sample id: never by position in a batch.

    Args:
        ids: the cached samples' ids, (A,); all other ids are simply not cached.
        size: n, the number of samples there are.
        lengths: per stream, the number of real tokens of every sample, (n,).
        widths: per stream, the width D of a row.
        dtype: how rows are stored, float32 or float16. The means beside them are float32.
        device: where the cache lives.
    """

    def __init__(
        self,
        ids: Tensor,
        size: int,
        lengths: Mapping[str, Tensor],
        widths: Mapping[str, int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.size = size
        self.ids = ids.to(self.device, torch.int64)
        self.slot_of = torch.full((size,), -1, dtype=torch.int64, device=self.device)
        self.slot_of[self.ids] = torch.arange(len(ids), device=self.device)
        self.written_at = torch.full((len(ids),), -1, dtype=torch.int64, device=self.device)  # epoch; −1 is never
        self.sample_lengths = {stream: length.to(self.device) for stream, length in lengths.items()}
        self._store = {
            stream: _Rows.empty(length.to(self.device)[self.ids], widths[stream], dtype, self.device)
            for stream, length in lengths.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes held in rows and means."""
        return sum(
            tensor.numel() * tensor.element_size()
            for store in self._store.values()
            for tensor in (store.rows, store.means)
        )

    def slots(self, ids: Tensor) -> Tensor:
        """Where each sample lives in the cache, (B,); −1 for a sample that is not cached."""
        ids = ids.to(self.device, torch.int64)
        outside = (ids < 0) | (ids >= self.size)
        if bool(outside.any()):
            raise IndexError(
                f"sample id {int(ids[outside][0])} is not in the data the method was prepared with "
                f"(0–{self.size - 1}); was the dataset changed after prepare()?"
            )
        return self.slot_of[ids]

    def known(self, ids: Tensor) -> Tensor:
        """Which samples have a δ in the cache, (B,)."""
        slots = self.slots(ids)
        return (slots >= 0) & (self.written_at[slots.clamp_min(0)] >= 0)

    def read(self, ids: Tensor, like: Perturbation) -> Perturbation:
        """δ_i of every cached sample of a batch, laid out by its mask; zero for the others."""
        slots = self.slots(ids)
        self._check_lengths(ids, like)
        values = {}
        for stream, zeros in like.values.items():
            store = self._store[stream]
            rows = store.rows[store.index(slots, like.masks[stream].to(self.device))]  # (B, T, D)
            values[stream] = rows.to(zeros.device, zeros.dtype, non_blocking=True)
        return Perturbation(values, like.masks)

    def write(self, ids: Tensor, delta: Perturbation, ema: float, ball: Ball, epoch: int) -> Perturbation:
        """Blend the cached samples' new Δ into the cache and return what each sample is to be trained on.

        A cached sample gets Π(α · old + (1 − α) · Δ), or Δ as it is when it has no old value; an uncached one
        keeps its own Δ.
        """
        slots = self.slots(ids)
        old = self.read(ids, delta)
        self._require_finite(ids, delta)
        has_old = self.known(ids).to(delta.values[delta.streams[0]].device)
        blend = old.map(lambda values, _: ema * values).plus(delta, 1 - ema)
        fresh = ball.project(blend).where(has_old, delta)
        cached = slots >= 0
        for stream, values in fresh.values.items():
            self._put(stream, slots, values.to(self.device), delta.masks[stream].to(self.device))
        self.written_at[slots[cached]] = epoch
        return fresh

    def means(self, stream: str, slots: Tensor) -> Tensor:
        """Mean row of each of these cached samples, (..., D)."""
        return self._store[stream].means[slots]

    def staleness(self, ids: Tensor, epoch: int) -> Tensor:
        """Epochs since the cached samples of a batch were last written, averaged; 0 if none is cached."""
        slots = self.slots(ids)
        written = torch.where(slots >= 0, self.written_at[slots.clamp_min(0)], -1)
        age = torch.where(written >= 0, epoch - written, 0)
        return age.sum() / (written >= 0).sum().clamp_min(1)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that changes in training, as tensors."""
        state = {"ids": self.ids, "written_at": self.written_at}
        for stream, store in self._store.items():
            state |= {f"{stream}.rows": store.rows, f"{stream}.means": store.means, f"{stream}.lengths": store.lengths}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the saved values over, after checking that they belong to this data and these cached samples."""
        mine = self.state_dict()
        if set(state) != set(mine):
            raise ValueError(f"the saved cache holds {sorted(state)}, this one {sorted(mine)}; is it another model's?")
        for name, value in mine.items():
            saved = state[name]
            if saved.shape != value.shape or saved.dtype != value.dtype:
                raise ValueError(
                    f"the saved cache's {name} is {tuple(saved.shape)} of {saved.dtype}, this run needs "
                    f"{tuple(value.shape)} of {value.dtype}; resume with the saved run's data and cache options"
                )
            fixed = name == "ids" or name.endswith(".lengths")
            if fixed and not torch.equal(saved.to(self.device), value):
                raise ValueError(f"the saved cache's {name} differ from this run's; resume with the same data and seed")
        for name, value in mine.items():
            value.copy_(state[name])

    def _put(self, stream: str, slots: Tensor, values: Tensor, mask: Tensor) -> None:
        store = self._store[stream]
        store.rows[store.index(slots, mask)] = values.to(store.rows.dtype)
        store.rows[-1] = 0  # uncached samples and padding were aimed at it
        stored = blank_padding(store.rows[store.index(slots, mask)].float(), mask)  # (B, T, D), as it will be read
        mean = stored.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        cached = slots >= 0
        store.means[slots[cached]] = mean[cached]

    def _check_lengths(self, ids: Tensor, like: Perturbation) -> None:
        ids = ids.to(self.device, torch.int64)
        for stream, mask in like.masks.items():
            now, then = mask.sum(1).to(self.device), self.sample_lengths[stream][ids]
            if not torch.equal(now, then):
                which = int((now != then).nonzero()[0])
                raise ValueError(
                    f"sample id {int(ids[which])} has {int(now[which])} tokens in stream '{stream}', but had "
                    f"{int(then[which])} when the method was prepared; the data must not change during training "
                    "(random augmentation or truncation? then use cache-free methods such as r3f or smart)"
                )

    def _require_finite(self, ids: Tensor, delta: Perturbation) -> None:
        """A non-finite δ must never reach the cache: it would come back in every epoch."""
        for stream, values in delta.values.items():
            dtype = self._store[stream].rows.dtype
            finite = torch.isfinite(values.to(dtype)).all(dim=2).all(dim=1)  # as stored: float16 overflows at 65504
            if not bool(finite.all()):
                bad = ids.to(finite.device)[~finite].tolist()
                raise FloatingPointError(
                    f"the perturbation of stream '{stream}' is not finite in {dtype} for sample ids {bad}; nothing was "
                    "cached. Lower step_size or radius, or train in bf16 or fp32"
                )
