"""What a model predicted for each sample at its last visit: a row for each predicted item, found by sample id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from advreg.core.scramble import combined
from advreg.core.sketch import Parts
from advreg.memory.cache import token_rows

Fields = Mapping[str, tuple[int, torch.dtype]]


@dataclass(frozen=True)
class Found:
    """Where the predicted items of a batch are remembered.

    Args:
        slots: of each sample, (B,).
        index: row of each item, (B, T); the row of nobody for what is none.
        items: which these are, (B, T).
        labels: a key of the labels of each sample, (B,).
        fits: samples that have as many items as there are rows for them, (B,).
        known: those whose last prediction is there, made for the same labels, (B,).
        changed: those that were there before with other labels, (B,).
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
        """Items whose last prediction is there, (B · T,)."""
        return (self.items & self.known[:, None]).flatten()


class PredictionStore:
    """The last prediction of each sample, in as many rows as it has predicted items.

    Args:
        counts: predicted items of each sample, (n,); sample i has the id i.
        fields: what a row holds: how many numbers of which type, by name.
        device: where the rows live.
    """

    def __init__(self, counts: Tensor, fields: Fields, device: torch.device) -> None:
        self.fields = dict(fields)
        self.counts = counts.to(device, torch.int64)
        self.offsets = self.counts.cumsum(0) - self.counts
        samples, rows = len(counts), int(counts.sum())
        # the last of each belongs to nobody
        self.visits = torch.zeros(samples + 1, dtype=torch.int32, device=device)
        self.labels = torch.zeros(samples + 1, dtype=torch.int64, device=device)
        self.rows = {
            name: torch.zeros(rows + 1, width, dtype=dtype, device=device) for name, (width, dtype) in fields.items()
        }

    @property
    def nbytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.state().values())

    def find(self, ids: Tensor, labels: Tensor, mask: Tensor) -> Found:
        """Where the items of a batch are remembered.

        Args:
            ids: of the samples, (B,).
            labels: of each item, (B,) or (B, T); of several labels at once (B, C).
            mask: which items count, (B,) or (B, T).
        """
        slots, keys, mask = ids.to(self.counts.device), label_keys(labels, mask), mask.reshape(len(ids), -1)
        fits = mask.sum(1) == self.counts[slots]
        index = token_rows(self.offsets[slots], fits, mask, self._nobody)
        seen, same = self.visits[slots] > 0, keys == self.labels[slots]
        return Found(slots, index, mask, keys, fits, seen & same & fits, seen & ~(same & fits))

    def read(self, found: Found) -> Parts:
        """The rows of a batch's items, (B · T, …)."""
        index = found.index.flatten()
        return {name: rows[index] for name, rows in self.rows.items()}

    def write(self, found: Found, parts: Parts) -> None:
        """Remember the rows of a batch's items, (B · T, …).

        Of a sample that comes twice in a batch the last prediction counts; one that is not finite is not remembered.
        """
        kept = found.fits & ~_comes_again(found.slots) & self._finite(found, parts)
        index = found.index.masked_fill(~kept[:, None], self._nobody).flatten()
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
        """Samples all of whose rows are finite, (B,)."""
        rows = torch.stack([part.isfinite().all(-1) for part in parts.values()]).all(0)
        return (rows.view(found.items.shape) | ~found.items).all(1)

    @property
    def _nobody(self) -> int:
        return len(next(iter(self.rows.values()))) - 1

    def state(self) -> dict[str, Tensor]:
        """All that changes in training, as tensors, and what it must fit."""
        return {**self.rows, "visits": self.visits, "labels": self.labels, "counts": self.counts}

    @classmethod
    def restored(cls, state: Mapping[str, Tensor], counts: Tensor, device: torch.device) -> PredictionStore:
        """A store with the values of a saved one, which must be of samples with as many items."""
        if not torch.equal(state["counts"].cpu(), counts.cpu()):
            raise ValueError(
                "the saved predictions are of samples with other numbers of labels than this run's; resume with the "
                "same data"
            )
        rows = {name: value for name, value in state.items() if name not in ("visits", "labels", "counts")}
        store = cls(counts, {name: (value.shape[1], value.dtype) for name, value in rows.items()}, device)
        for name, value in store.state().items():
            value.copy_(state[name])
        return store


def label_keys(labels: Tensor, mask: Tensor) -> Tensor:
    """A number that tells the labels of a sample from others', (B,); padding at either end changes nothing."""
    values = labels.double().view(torch.int64) if labels.is_floating_point() else labels.long()
    values = values.reshape(len(values), -1)
    real = mask.reshape(len(mask), -1).expand(values.shape)
    return combined(values, real.cumsum(1)).masked_fill(~real, 0).sum(1)


def _comes_again(slots: Tensor) -> Tensor:
    """Which samples come once more further down in the batch, (B,)."""
    return (slots[:, None] == slots[None, :]).triu(1).any(1)
