"""The last prediction of each sample: one row per predicted item, found by sample id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from advreg.core.checks import UnsupportedError
from advreg.core.progress import Progress
from advreg.core.scramble import combined, uniform
from advreg.core.sketch import Parts
from advreg.memory.cache import token_rows
from advreg.memory.corpus import Corpus
from advreg.memory.memory import Memory, MemoryState

Fields = Mapping[str, tuple[int, torch.dtype]]


@dataclass(frozen=True)
class Found:
    """Where the store holds the predicted items of a batch.

    Args:
        slots: index of each sample, (B,).
        index: row of each item, (B, T); the spare row where the batch has no item.
        items: positions that hold an item, (B, T).
        labels: hash of each sample's labels, (B,).
        fits: samples whose number of items matches their rows, (B,).
        known: samples with a stored prediction for the same labels, (B,).
        changed: samples with a stored prediction for other labels, (B,).
    """

    slots: Tensor
    index: Tensor
    items: Tensor
    labels: Tensor
    fits: Tensor
    known: Tensor
    changed: Tensor

    @property
    def known_items(self) -> Tensor:
        """Items with a stored prediction, (B · T,)."""
        return (self.items & self.known[:, None]).flatten()


class PredictionStore:
    """The last prediction of each sample, one row per predicted item.

    Args:
        counts: predicted items of each sample, (n,); sample i has the id i.
        fields: the numbers in a row and their type, by name.
        device: where the rows live.
    """

    def __init__(self, counts: Tensor, fields: Fields, device: torch.device) -> None:
        self.fields = dict(fields)
        self.counts = counts.to(device, torch.int64)
        self.offsets = self.counts.cumsum(0) - self.counts
        samples, rows = len(counts), int(counts.sum())
        # each ends with a spare entry, for positions that hold no item
        self.visits = torch.zeros(samples + 1, dtype=torch.int32, device=device)
        self.labels = torch.zeros(samples + 1, dtype=torch.int64, device=device)
        self.rows = {
            name: torch.zeros(rows + 1, width, dtype=dtype, device=device)
            for name, (width, dtype) in fields.items()
        }

    @property
    def nbytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.state().values())

    def find(self, ids: Tensor, labels: Tensor, mask: Tensor) -> Found:
        """Where the store holds the items of a batch.

        Args:
            ids: sample ids, (B,).
            labels: labels of the items, (B,) or (B, T); (B, C) for several labels at once.
            mask: positions that hold an item, (B,) or (B, T).
        """
        slots, keys, mask = (
            ids.to(self.counts.device),
            label_keys(labels, mask),
            mask.reshape(len(ids), -1),
        )
        fits = mask.sum(1) == self.counts[slots]
        index = token_rows(self.offsets[slots], fits, mask, self._spare)
        seen, same = self.visits[slots] > 0, keys == self.labels[slots]
        return Found(slots, index, mask, keys, fits, seen & same & fits, seen & ~(same & fits))

    def read(self, found: Found) -> Parts:
        """The stored rows, (B · T, …)."""
        index = found.index.flatten()
        return {name: rows[index] for name, rows in self.rows.items()}

    def write(self, found: Found, parts: Parts) -> None:
        """Store the rows of a batch, (B · T, …).

        If a sample occurs twice in the batch, its last prediction is stored. A prediction that is
        not finite is not.
        """
        kept = found.fits & ~_recurs(found.slots) & self._finite(found, parts)
        index = found.index.masked_fill(~kept[:, None], self._spare).flatten()
        for name, rows in self.rows.items():
            rows.index_copy_(0, index, parts[name].to(rows.dtype))
            rows[-1].zero_()
        visits = self.visits[found.slots] + 1
        slots = found.slots.masked_fill(~kept, len(self.counts))
        self.visits.index_copy_(0, slots, visits)
        self.labels.index_copy_(0, slots, found.labels)
        self.visits[-1].zero_()
        self.labels[-1].zero_()

    def _finite(self, found: Found, parts: Parts) -> Tensor:
        """Samples whose rows are all finite, (B,)."""
        rows = torch.stack([part.isfinite().all(-1) for part in parts.values()]).all(0)
        return (rows.view(found.items.shape) | ~found.items).all(1)

    @property
    def _spare(self) -> int:
        return len(next(iter(self.rows.values()))) - 1

    def state(self) -> dict[str, Tensor]:
        """The contents as tensors, with the item counts to check them against."""
        return {**self.rows, "visits": self.visits, "labels": self.labels, "counts": self.counts}

    @classmethod
    def restored(
        cls, state: Mapping[str, Tensor], counts: Tensor, device: torch.device
    ) -> PredictionStore:
        """A store with saved contents; the item counts must match."""
        if not torch.equal(state["counts"].cpu(), counts.cpu()):
            raise ValueError(
                "the saved predictions are of samples with other numbers of labels than this "
                "run's; resume with the "
                "same data"
            )
        rows = {
            name: value
            for name, value in state.items()
            if name not in ("visits", "labels", "counts")
        }
        store = cls(
            counts, {name: (value.shape[1], value.dtype) for name, value in rows.items()}, device
        )
        for name, value in store.state().items():
            value.copy_(state[name])
        return store


class PredictionMemory(Memory):
    """A :class:`PredictionStore` whose fields are known with the first predictions."""

    def __init__(self) -> None:
        self._items: Tensor | None = None  # of each sample
        self._fingerprint = ""
        self._seed = 0
        self._device = torch.device("cpu")
        self._store: PredictionStore | None = None

    def prepare(
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        if corpus.shard.world > 1:
            raise UnsupportedError(
                f"temporal trains in one process so far, got {corpus.shard.world}; start one, or "
                "use rdrop or simcut"
            )
        if corpus.items is None:
            raise UnsupportedError(
                "temporal needs labels in the training data, got samples without; use simcut, or "
                "r3f"
            )
        self._items, self._fingerprint = corpus.items, corpus.fingerprint
        self._seed, self._device, self._store = seed, device, None

    def open(self, fields: Fields) -> PredictionStore:
        """The store, made for these fields when it is first used."""
        if self._items is None:
            raise RuntimeError(
                "the memory of temporal is not prepared; call method.memory.prepare(corpus, seed, "
                "device) before the first step"
            )
        self._store = self._store or PredictionStore(self._items, fields, self._device)
        return self._store

    def uniforms(self, found: Found, draws: int) -> Tensor:
        """Uniform numbers for each item, (B · T, m).

        They depend on seed, sample, visit and item alone, so order, padding and a resume do not
        change them.
        """
        store = self._store
        if draws == 0 or store is None:
            return torch.empty(found.index.numel(), 0, device=found.index.device)
        each = torch.arange(draws, device=found.index.device)
        sample = combined(found.slots, store.visits[found.slots], self._seed)
        item = found.index - store.offsets[found.slots][:, None]
        return uniform(combined(sample[:, None, None], item[:, :, None], each)).flatten(0, 1)

    def state(self) -> MemoryState:
        tensors = {} if self._store is None else self._store.state()
        return MemoryState(tensors, {"fingerprint": self._fingerprint})

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        state = next(iter(states), None)
        if state is None:
            return
        if self._items is None or state.facts.get("fingerprint") != self._fingerprint:
            raise ValueError(
                "the training data differs from the data of the checkpoint (its fingerprint "
                "changed), so cached predictions would be given to other samples; resume with the "
                "same data, or start a new run"
            )
        self._store = (
            PredictionStore.restored(state.tensors, self._items, self._device)
            if state.tensors
            else None
        )

    @property
    def bytes(self) -> int:
        return 0 if self._store is None else self._store.nbytes


def label_keys(labels: Tensor, mask: Tensor) -> Tensor:
    """A 64-bit hash of each sample's labels, (B,), independent of padding."""
    values = labels.double().view(torch.int64) if labels.is_floating_point() else labels.long()
    values = values.reshape(len(values), -1)
    real = mask.reshape(len(mask), -1).expand(values.shape)
    return combined(values, real.cumsum(1)).masked_fill(~real, 0).sum(1)


def _recurs(slots: Tensor) -> Tensor:
    """Samples that occur again further down in the batch, (B,)."""
    return (slots[:, None] == slots[None, :]).triu(1).any(1)
