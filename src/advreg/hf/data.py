"""Stable sample ids on their way from the dataset into the batch, and the checks of a batch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from advreg.hf.patches.mask_sync import PADDED, padding_of
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import bare
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.memory.memory import Memory
from advreg.methods.base import Batch

Collator = Callable[[Any], Any]
"""Makes a batch of samples of any kind."""


class Sized(Protocol):
    """A map-style dataset: a length and items by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Picked:
    """The samples of a batch as their dataset gives them, and their ids."""

    samples: Any
    ids: list[int]


class Identified(Dataset[Any]):
    """A dataset that gives a ``DataLoader`` each sample with its index.

    Otherwise it behaves as the dataset: ``identified[i]``, ``len(identified)`` and all attributes
    are the dataset's own.

    Args:
        samples: the dataset.
        required: whether a sample that has a ``sample_id`` already is an error; otherwise it gets
        no other.

    Example:
        >>> Identified([{"input_ids": [5, 6]}, {"input_ids": [7]}]).__getitems__([1])
        Picked(samples=[{'input_ids': [7]}], ids=[1])
    """

    def __init__(self, samples: Sized, required: bool = True) -> None:
        self.samples = samples
        self.required = required

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]

    def __getattr__(self, name: str) -> Any:
        return attribute_of(self, "samples", name)

    def __getitems__(self, indices: list[int]) -> Any:
        """What a ``DataLoader`` asks for: the samples of a batch with their ids, or alone if they
        have ids already.
        """
        samples = fetched(self.samples, indices)
        if not (isinstance(samples, list) and any(map(_has_id, samples))):
            return Picked(samples, indices)
        if self.required:
            raise ValueError(_OWN_ID)
        return samples


_OWN_ID = f"the dataset must not have a column '{SAMPLE_ID}'; rename it"


def _has_id(sample: object) -> bool:
    return isinstance(sample, Mapping) and SAMPLE_ID in sample


def identified(dataset: Any, required: bool = False) -> Any:
    """The training set with ids, or unchanged if its samples cannot have any.

    Args:
        dataset: what the trainer was given.
        required: whether the method remembers samples; otherwise only messages need the ids."""
    if isinstance(dataset, Identified):
        dataset = dataset.samples
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        return dataset
    if required and SAMPLE_ID in (getattr(dataset, "column_names", None) or ()):
        raise ValueError(_OWN_ID)
    return Identified(dataset, required)


def fetched(dataset: Sized, indices: Sequence[int]) -> Any:
    """Samples as a ``DataLoader`` fetches them: in one call of ``__getitems__`` if the dataset has
    it, as Arrow tables do. That may return any object that the collator takes.
    """
    together = getattr(dataset, "__getitems__", None)
    return together(list(indices)) if together else [dataset[index] for index in indices]


def attribute_of(wrapper: object, inner: str, name: str) -> Any:
    """An attribute of the object that a wrapper holds; while it is unpickled, it holds none yet."""
    if name == inner or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(f"'{type(wrapper).__name__}' object has no attribute '{name}'")
    return getattr(getattr(wrapper, inner), name)


@dataclass
class IdCollator:
    """Collates with the user's collator, adds the ids, and checks what the model can take.

    A batch with ids also says which of its masks hide a position, so that no pass has to ask the
    GPU. Attributes are the collator's own, to read and to set.

    Args:
        collator: the collator to wrap, which does not see the ids.
        limits: what the model can take; see :class:`Limits`.
    """

    collator: Collator
    limits: Limits | None = None

    def __getattr__(self, name: str) -> Any:
        return attribute_of(self, "collator", name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("collator", "limits"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.collator, name, value)

    def __call__(self, features: Any) -> Any:
        if not isinstance(features, Picked):
            return self._checked(self.collator(features))
        batch = self.collator(_copies(features.samples))
        if isinstance(batch, MutableMapping):
            batch = copy(batch)  # which a collator may hold on to
            batch[SAMPLE_ID] = torch.tensor(features.ids, dtype=torch.int64)
            batch[PADDED] = padding_of(batch)
        return self._checked(batch)

    def _checked(self, batch: Any) -> Any:
        if self.limits is not None and isinstance(batch, MutableMapping):
            self.limits.check(batch)
        return batch


def _copies(samples: Any) -> Any:
    """Copies of samples: a collator may take its rows apart, and the next epoch needs them
    again.
    """
    if not isinstance(samples, list):
        return samples
    return [copy(row) if isinstance(row, Mapping) else row for row in samples]


@dataclass(frozen=True)
class Limits:
    """The limits of a model: labels below ``classes``, at most ``positions`` tokens; None is no
    limit.
    """

    classes: int | None
    positions: int | None

    @classmethod
    def of(cls, model: nn.Module) -> Limits:
        core = bare(model)
        return cls(_classes(core), _positions(core))

    def check(self, batch: Batch) -> None:
        """Refuse a batch the model has no class or no position for, naming the sample."""
        self._check_length(batch.get("input_ids"), batch.get("attention_mask"), batch, "tokens")
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return  # scores, of any size and number
        if self.classes is not None:
            _check_classes(labels, self.classes, batch)
        elif labels.dim() == 2:  # the target of a translation
            self._check_length(labels, labels != IGNORED, batch, "target tokens")

    def _check_length(self, tokens: object, mask: Tensor | None, batch: Batch, what: str) -> None:
        if (
            not isinstance(tokens, Tensor)
            or self.positions is None
            or tokens.shape[1] <= self.positions
        ):
            return
        lengths = (torch.ones_like(tokens) if mask is None else mask).sum(1)
        row = int(lengths.argmax())
        raise ValueError(
            f"{_sample(batch, row)} has {int(lengths[row])} {what} (padded to {tokens.shape[1]}), "
            "but the model "
            f"takes at most {self.positions}; tokenize with truncation=True, "
            f"max_length={self.positions}"
        )


def _check_classes(labels: Tensor, classes: int, batch: Batch) -> None:
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])
        raise ValueError(
            f"{_sample(batch, row)} has the label {int(labels[wrong][0])}, but the model has "
            f"{classes} classes "
            f"(0–{classes - 1}); load the model with num_labels={int(labels.max()) + 1} or correct "
            "the labels"
        )


def _sample(batch: Batch, row: int) -> str:
    return (
        f"sample id {batch[SAMPLE_ID][row]}" if SAMPLE_ID in batch else f"sample {row} of a batch"
    )


def _classes(core: nn.Module) -> int | None:
    """Number of classes of a classification head; None for regression and multiple labels."""
    config = getattr(core, "config", None)
    problem, classes = getattr(config, "problem_type", None), int(getattr(config, "num_labels", 0))
    if (
        "Classification" in type(core).__name__
        and problem in (None, "single_label_classification")
        and classes > 1
    ):
        return classes
    return None


def _positions(core: nn.Module) -> int | None:
    """Positions of a learned position table; RoBERTa and related models reserve the first ones."""
    for name, module in core.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES:
            lost = 0 if module.padding_idx is None else module.padding_idx + 1
            offset = int(getattr(module, "offset", 0))
            return module.num_embeddings - max(lost, offset)
    return None


_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


def in_batches(
    dataset: Sized, collator: Collator, size: int, indices: range | None = None
) -> Iterator[Batch]:
    """The dataset in order, or these samples of it, collated."""
    indices = range(len(dataset)) if indices is None else indices
    for first in range(0, len(indices), size):
        yield collator(fetched(dataset, indices[first : first + size]))


def leave_inherited(worker: int) -> None:
    """Freeze the garbage collector of a forked worker, so that it frees no CUDA tensor of the
    parent.

    Freeing one there ends the worker: "DataLoader worker exited unexpectedly".
    """
    gc.freeze()


class Ahead:
    """Batches of an iterator in their order, with a look at the next ones.

    Example:
        >>> ahead, numbers = Ahead(), iter(range(5))
        >>> ahead.take(numbers, 2), ahead.glimpse(2), ahead.take(numbers, 2), ahead.glimpse(2)
        ([0, 1], [2, 3], [2, 3], [4])
    """

    def __init__(self) -> None:
        self._iterator: Iterator[Batch] | None = None
        self._held: list[Batch] = []

    def take(self, iterator: Iterator[Batch], count: int) -> list[Batch]:
        """The next ``count`` batches, or fewer at the end."""
        if iterator is not self._iterator:  # another epoch
            self._iterator, self._held = iterator, []
        taken, self._held = self._held[:count], self._held[count:]
        return [*taken, *islice(iterator, count - len(taken))]

    def prefetch(self, memory: Memory | None, count: int) -> None:
        """Let a memory bring the rows of the ``count`` batches that will be taken next."""
        if memory is not None and memory.prefetches:
            for batch in self.glimpse(count):
                memory.prefetch(batch[SAMPLE_ID].cpu())

    def glimpse(self, count: int) -> list[Batch]:
        """The ``count`` batches that will be taken next, or fewer at the end."""
        if self._iterator is not None:
            self._held += islice(self._iterator, max(0, count - len(self._held)))
        return self._held[:count]
