"""The last prediction of each sample: one row per predicted item, found by sample id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from advreg.core.checks import UnsupportedError
from advreg.core.divergence import Prediction
from advreg.core.progress import Progress
from advreg.core.scramble import combined, uniform
from advreg.core.shard import Shard
from advreg.core.sketch import Sketch
from advreg.memory.corpus import Corpus
from advreg.memory.memory import under
from advreg.memory.row_memory import RowMemory
from advreg.memory.rows import Fields, Parts, SampleRows, row_bytes
from advreg.memory.tiers import Place

_STREAM = "items"


@dataclass(frozen=True)
class Found:
    """Where the store holds the predicted items of a batch.

    Args:
        ids: of the samples, (B,).
        slots: where each sample is stored, (B,); −1 where its rows do not fit the batch.
        items: positions that hold an item, (B, T).
        labels: hash of each sample's labels, (B,).
        known: samples with a stored prediction for the same labels, (B,).
        changed: samples with a stored prediction for other labels, (B,).
    """

    ids: Tensor
    slots: Tensor
    items: Tensor
    labels: Tensor
    known: Tensor
    changed: Tensor

    @property
    def known_items(self) -> Tensor:
        """Items with a stored prediction, (B · T,)."""
        return (self.items & self.known[:, None]).flatten()


class PredictionRows(SampleRows):
    """The last prediction of each sample of a process, one row per predicted item.

    Args:
        counts: predicted items of each sample, (n,).
        fields: the numbers in a row and their type, by name.
        shard: which samples these are.
        place: where the rows live.
    """

    def __init__(self, counts: Tensor, fields: Fields, shard: Shard, place: Place) -> None:
        ids = shard.ids_at(torch.arange(len(shard)))
        self.fields = fields
        super().__init__(ids, shard, {_STREAM: counts}, {_STREAM: fields}, place)
        size = len(shard) + 1
        self.numbers = {
            "visits": torch.zeros(size, dtype=torch.int32, device=self.device),
            "labels": torch.zeros(size, dtype=torch.int64, device=self.device),
        }

    def find(self, ids: Tensor, labels: Tensor, mask: Tensor) -> Found:
        """Where the items of a batch are stored.

        Args:
            ids: sample ids, (B,).
            labels: labels of the items, (B,) or (B, T); (B, C) for several labels at once.
            mask: positions that hold an item, (B,) or (B, T).
        """
        keys, mask = label_keys(labels, mask), mask.reshape(len(ids), -1)
        slots, owned = self.locate(ids)
        self._check.put(owned.all(), lambda: self._require(ids))
        fits = mask.sum(1) == self.sample_lengths[_STREAM][slots]
        seen = self.numbers["visits"][slots] > 0
        same = fits & (keys == self.numbers["labels"][slots])
        slots = slots.masked_fill(~fits, -1)
        return Found(ids, slots, mask, keys, seen & same, seen & ~same)

    def read(self, found: Found) -> dict[str, Tensor]:
        """The stored rows, (B · T, …)."""
        rows = self.rows(found.ids, found.slots, {_STREAM: found.items})[_STREAM]
        return {name: part.flatten(0, 1) for name, part in rows.items()}

    def write(self, found: Found, parts: Parts) -> None:
        """Store the rows of a batch, (B · T, …).

        If a sample occurs twice in the batch, its last prediction is stored. A prediction that is
        not finite is not.
        """
        kept = (found.slots >= 0) & ~_recurs(found.ids) & _finite(found, parts)
        slots = found.slots.masked_fill(~kept, -1)
        self.forget(found.ids)
        shaped = {name: part.view(*found.items.shape, -1) for name, part in parts.items()}
        self._store[_STREAM].write(slots, found.items, shaped)
        visits = self.numbers["visits"][slots] + 1
        spare = slots.remainder(len(self.ids) + 1)
        for name, values in (("visits", visits), ("labels", found.labels)):
            self.numbers[name].index_copy_(0, spare, values)
            self.numbers[name][-1].zero_()

    def uniforms(self, found: Found, seed: int, draws: int) -> Tensor:
        """Uniform numbers for each item, (B · T, m).

        They depend on seed, sample, visit and item alone, so order, padding, a resume and the
        number of processes do not change them.
        """
        each = torch.arange(draws, device=self.device)
        visits = self.numbers["visits"][found.slots]
        sample = combined(found.ids.to(self.device), visits, seed)[:, None, None]
        item = (found.items.cumsum(1) - 1)[:, :, None]
        return uniform(combined(sample, item, each)).flatten(0, 1)


@dataclass
class PredictionMemory(RowMemory[PredictionRows]):
    """Cached predictions.

    Args:
        form: the form in which predictions of a kind with a number of outputs are cached.
    """

    form: Callable[[Prediction, int], Sketch]
    seed: int = field(default=0, init=False, repr=False)
    _device: torch.device = field(default=torch.device("cpu"), init=False, repr=False)

    def prepare(
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        if corpus.items is None:
            raise UnsupportedError(
                "temporal needs labels in the training data, got samples without; use simcut, or "
                "r3f"
            )
        self._corpus = replace(corpus, vectors={})
        self.seed, self._device, self.held = seed, device, None
        if corpus.outputs is not None:
            self.open(self.form(*corpus.outputs).fields)

    def open(self, fields: Fields) -> PredictionRows:
        """The predictions in this form."""
        held = self.held
        if held is None or (held.fields != fields and not held.numbers["visits"].any()):
            items = self.corpus.items
            assert items is not None
            needed = (int(items.sum()) + 1) * row_bytes(fields)
            place = self.storage.place(needed, self._device)
            held = self.held = PredictionRows(items, fields, self.corpus.shard, place)
        return held

    def _rows_for(self, saved: Mapping[str, Tensor]) -> PredictionRows:
        parts = under(f"{_STREAM}.", saved)
        return self.open(
            {name: (x.shape[1], x.dtype) for name, x in parts.items() if name != "lengths"}
        )


def label_keys(labels: Tensor, mask: Tensor) -> Tensor:
    """A 64-bit hash of each sample's labels, (B,), independent of padding."""
    values = labels.double().view(torch.int64) if labels.is_floating_point() else labels.long()
    values = values.reshape(len(values), -1)
    real = mask.reshape(len(mask), -1).expand(values.shape)
    return combined(values, real.cumsum(1)).masked_fill(~real, 0).sum(1)


def _finite(found: Found, parts: Parts) -> Tensor:
    """Samples whose rows are all finite, (B,)."""
    rows = torch.stack([part.isfinite().all(-1) for part in parts.values()]).all(0)
    return (rows.view(found.items.shape) | ~found.items).all(1)


def _recurs(ids: Tensor) -> Tensor:
    """Samples that occur again further down in the batch, (B,)."""
    return (ids[:, None] == ids[None, :]).triu(1).any(1)
