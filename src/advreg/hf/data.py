"""Stable sample ids: how they get from the dataset into the batch, and what is checked and noted on the way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from advreg.hf.head import IGNORED
from advreg.hf.injection import bare
from advreg.hf.masks import PADDED, padding_of
from advreg.hf.task import SAMPLE_ID

Features = list[dict[str, Any]]


class Sized(Protocol):
    """A map-style dataset: a length and items by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Identified(Dataset[dict[str, Any]]):
    """A dataset whose items carry their index as ``sample_id``.

    Example:
        >>> Identified([{"input_ids": [5, 6]}, {"input_ids": [7]}])[1]
        {'input_ids': [7], 'sample_id': 1}
    """

    def __init__(self, samples: Sized) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = dict(self.samples[index])
        if SAMPLE_ID in item:
            raise ValueError(f"the dataset must not have a column '{SAMPLE_ID}' of its own; rename it")
        return {**item, SAMPLE_ID: index}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]] | Picked:
        """What a ``DataLoader`` asks for: the samples of a batch, or which they are if they can be had all at once."""
        return Picked(self, indices) if self.gathers else [self[index] for index in indices]

    @property
    def gathers(self) -> bool:
        """Does the dataset give several samples at once, by ``gathered(indices)``?"""
        return hasattr(self.samples, "gathered")


@dataclass(frozen=True)
class Picked:
    """Samples of a batch: one after the other, or all at once for a collator that ``takes_gathered``."""

    dataset: Identified
    ids: list[int]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.dataset[index] for index in self.ids)

    def gathered(self) -> Any:
        samples: Any = self.dataset.samples
        return samples.gathered(self.ids)


@dataclass
class IdCollator:
    """Collate with the user's collator, carry ``sample_id`` around it, and check what the model cannot take.

    A batch with ids is trained on; it also says which of its masks hide something, which a GPU is slow to tell.

    Args:
        collator: the collator to wrap; it never sees the ids.
        limits: what the model can take; see :class:`Limits`.
    """

    collator: Callable[[Features], Mapping[str, Any]]
    limits: Limits | None = None

    def __call__(self, features: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        ids: Sequence[int | None]
        if isinstance(features, Picked) and getattr(self.collator, "takes_gathered", False):
            rows, ids = features.gathered(), features.ids
        else:
            rows = [dict(feature) for feature in features]
            ids = [row.pop(SAMPLE_ID, None) for row in rows]
        batch = dict(self.collator(rows))
        if any(found is not None for found in ids):
            batch[SAMPLE_ID] = torch.tensor(ids, dtype=torch.int64)
            batch[PADDED] = padding_of(batch)
        if self.limits is not None:
            self.limits.check(batch)
        return batch


@dataclass(frozen=True)
class Limits:
    """What a model can take: labels below ``classes``, at most ``positions`` tokens; ``None`` is no limit."""

    classes: int | None
    positions: int | None

    @classmethod
    def of(cls, model: Any) -> Limits:
        core = bare(model)
        return cls(_classes(core), _positions(core))

    def check(self, batch: Mapping[str, Any]) -> None:
        """Refuse a batch the model has no class or no position for, naming the sample."""
        self._check_length(batch.get("input_ids"), batch.get("attention_mask"), batch, "tokens")
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return  # scores, of any size and number
        if self.classes is not None:
            _check_classes(labels, self.classes, batch)
        elif labels.dim() == 2:  # the target of a translation
            self._check_length(labels, labels != IGNORED, batch, "target tokens")

    def _check_length(self, tokens: Any, mask: Tensor | None, batch: Mapping[str, Any], what: str) -> None:
        if not isinstance(tokens, Tensor) or self.positions is None or tokens.shape[1] <= self.positions:
            return
        lengths = (torch.ones_like(tokens) if mask is None else mask).sum(1)
        row = int(lengths.argmax())
        raise ValueError(
            f"{_sample(batch, row)} has {int(lengths[row])} {what} (padded to {tokens.shape[1]}), but the model "
            f"takes at most {self.positions}; tokenize with truncation=True, max_length={self.positions}"
        )


def _check_classes(labels: Tensor, classes: int, batch: Mapping[str, Any]) -> None:
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])
        raise ValueError(
            f"{_sample(batch, row)} has the label {int(labels[wrong][0])}, but the model has {classes} classes "
            f"(0–{classes - 1}); load the model with num_labels={int(labels.max()) + 1} or mend the labels"
        )


def _sample(batch: Mapping[str, Any], row: int) -> str:
    return f"sample id {int(batch[SAMPLE_ID][row])}" if SAMPLE_ID in batch else f"sample {row} of a batch"


def _classes(core: Any) -> int | None:
    """Number of classes of a classification head; ``None`` for regression and several labels at once."""
    if "Classification" in type(core).__name__ and getattr(core.config, "problem_type", None) in (
        None,
        "single_label_classification",
    ):
        return int(core.config.num_labels) if core.config.num_labels > 1 else None
    return None


def _positions(core: Any) -> int | None:
    """Positions of a learned position table (RoBERTa and its kin lose the first ones to the padding index)."""
    for name, module in core.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES:
            lost = 0 if module.padding_idx is None else module.padding_idx + 1
            offset = int(getattr(module, "offset", 0))
            return module.num_embeddings - max(lost, offset)
    return None


_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


def in_batches(
    dataset: Sized, collator: Callable[[Features], Any], size: int, indices: range | None = None
) -> Iterator[dict[str, Any]]:
    """The dataset in order, or these samples of it, collated."""
    indices = range(len(dataset)) if indices is None else indices
    for first in range(0, len(indices), size):
        yield collator([dataset[index] for index in indices[first : first + size]])


def leave_inherited(worker: int) -> None:
    """For a worker of a data loader: what it inherited as a fork is not its own to free.

    Python may find garbage of the training process at any moment in the worker too. Of a tensor on a GPU, which a fork
    cannot reach, that would be the end of it: "DataLoader worker exited unexpectedly".
    """
    gc.freeze()
