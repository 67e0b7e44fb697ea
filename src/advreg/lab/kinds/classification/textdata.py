"""Labelled texts, held as plain values: what every text recipe trains on and is measured on.

A loader (`tables`, `docstrings`, `understanding`) hands its examples to `make_text_data`, which
checks them once and says what is wrong in terms of the file and row the user can open; everything
downstream may rely on the result.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from advreg.lab.kinds.sources import DataError, held_out_details


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts; `label` is a class number or, for regression, a
    score.
    """

    text: str
    pair: str | None
    label: int | float


@dataclass(frozen=True, slots=True)
class TextData:
    """A training and a development split; `labels` names the classes, and None means regression.

    Build one with `make_text_data`, which checks it.

    Args:
        name: of the data set.
        train, dev: what to train on, and what a run is judged by.
        labels: names of the classes, or None for regression.
        evaluations: further sets to evaluate on, by name.
        metrics: names of the scores (see `metrics.METRICS`); empty: the usual ones of the kind of
            task.
        notes: what a user should know of the data.
        details: what the record should say of the data.
    """

    name: str
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    labels: tuple[str, ...] | None
    evaluations: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_regression(self) -> bool:
        """Whether the labels are scores rather than class numbers."""
        return self.labels is None

    @property
    def num_labels(self) -> int:
        """How many outputs a model needs: the number of classes, or 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def has_pairs(self) -> bool:
        """Whether every example holds two texts."""
        return self.train[0].pair is not None

    @property
    def is_uneven(self) -> bool:
        """Whether a class has more than twice the training samples of another."""
        counts = Counter(example.label for example in self.train).values()
        return self.labels is not None and max(counts) > 2 * min(counts)

    def majority(self) -> tuple[str, float] | None:
        """The commonest class of `dev` and its share: what a constant answer scores at most."""
        if self.labels is None:
            return None
        label, count = Counter(example.label for example in self.dev).most_common(1)[0]
        return self.labels[int(label)], count / len(self.dev)

    def fingerprint(self) -> str:
        """SHA-256 of all examples in order and the class names; names of data set and scores are
        left out.
        """
        content: dict[str, Any] = {
            "dev": _plain(self.dev),
            "labels": self.labels,
            "train": _plain(self.train),
        }
        if (
            self.evaluations
        ):  # else left out: fingerprints from before there were further sets still hold
            content["evaluations"] = {
                name: _plain(examples) for name, examples in self.evaluations.items()
            }
        canonical = json.dumps(
            content, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def subset(self, train: int, seed: int) -> TextData:
        """The same task with `train` random training examples, in their old order; `dev` stays
        whole.

        Every class keeps at least one example, and of two subsets with one seed the larger holds
        the smaller.
        """
        order = list(range(len(self.train)))
        random.Random(seed).shuffle(order)
        first = (
            _first_of_each_class([self.train[index].label for index in order])
            if self.labels is not None
            else []
        )
        least = max(1, len(first))
        if not least <= train <= len(order):
            raise DataError(
                f"train must be between {least} (one example of each class) and {len(order)} (all "
                "there are), "
                f"got {train}"
            )
        must = [order[place] for place in first]
        chosen = dict.fromkeys(
            must + order
        )  # an ordered set: one of each class, then the others in drawn order
        return replace(
            self, train=tuple(self.train[index] for index in sorted(list(chosen)[:train]))
        )

    def held_out(self, share: float, seed: int, rows: int | None = None) -> TextData:
        """A task within `train`, to tune on without a look at `dev`: `share` of each class becomes
        the new `dev`, or this many `rows`, spread over the classes by their sizes.

        Both parts keep the order of `train`, depend on `seed` alone, and `train` keeps an example
        of every class. The old `dev` and the further sets are left out.
        """
        if rows is None and not 0 < share < 1:
            raise DataError(f"share must be between 0 and 1, both excluded, got {share}")
        groups = self._classes()
        sizes = [len(group) for group in groups]
        quotas = _quotas(sizes, share) if rows is None else self._spread(sizes, rows)
        draw = random.Random(seed)
        held = {
            index
            for group, quota in zip(groups, quotas, strict=True)
            for index in draw.sample(group, quota)
        }
        if not held:
            raise DataError(
                f"{self.name}: share must be large enough to hold an example out, got {share} of "
                f"{len(self.train)} training examples in {len(groups)} groups; hold more out or "
                "add examples"
            )
        return replace(
            self,
            train=tuple(example for index, example in enumerate(self.train) if index not in held),
            dev=tuple(self.train[index] for index in sorted(held)),
            evaluations={},
            details={
                **self.details,
                "held_out": held_out_details(share, seed, rows, len(self.train)),
            },
        )

    def swapped(self) -> TextData:
        """The same with `train` and `dev` exchanged: the other fold."""
        return replace(self, train=self.dev, dev=self.train)

    def _classes(self) -> list[list[int]]:
        """The places of each class in `train`, in the order of their first; of a regression all."""
        groups: dict[int | float | None, list[int]] = {}
        for index, example in enumerate(self.train):
            groups.setdefault(None if self.labels is None else example.label, []).append(index)
        return list(groups.values())

    def _spread(self, sizes: Sequence[int], rows: int) -> list[int]:
        """How many of each class to hold out, `rows` in all: by size, largest remainders first."""
        most = sum(sizes) - len(sizes)
        if not 1 <= rows <= most:
            raise DataError(
                f"{self.name}: rows must be between 1 and {most}, which leaves an example of each "
                f"class, got {rows}; hold fewer out or add examples"
            )
        exact = [rows * (size - 1) / most for size in sizes]
        quotas = [int(share) for share in exact]
        by_remainder = sorted(range(len(sizes)), key=lambda place: quotas[place] - exact[place])
        for place in by_remainder[: rows - sum(quotas)]:
            quotas[place] += 1
        return quotas


def _quotas(sizes: Sequence[int], share: float) -> list[int]:
    """How many of each class to hold out: the share of it, but never all."""
    return [min(round(share * size), size - 1) for size in sizes]


def make_text_data(
    name: str,
    train: Iterable[Example],
    dev: Iterable[Example],
    labels: Sequence[str] | None,
    *,
    evaluations: Mapping[str, Iterable[Example]] | None = None,
    train_source: str = "train",
    dev_source: str = "dev",
    blank_texts: bool = False,
    rows: Sequence[int] | None = None,
) -> TextData:
    """Check the examples and hold them as a `TextData`; the sources are what errors call the two
    splits, and `rows` are the row numbers of `dev` in its source.

    Empty texts are an error unless `blank_texts` says that the data set is known to hold some.
    """
    further = {key: tuple(examples) for key, examples in (evaluations or {}).items()}
    data = TextData(
        name, tuple(train), tuple(dev), None if labels is None else tuple(labels), further
    )
    _check_labels(data.labels, train_source)
    others = {dev_source: data.dev, **further}
    for source, examples in ((train_source, data.train), *others.items()):
        if not examples:
            raise DataError(
                f"{source} must hold at least one example, got none; is the file empty?"
            )
        check_examples(examples, data.labels, source, blank_texts=blank_texts)
    for source, examples in others.items():
        _check_alike(data, examples, train_source, source, rows if source == dev_source else None)
    if data.labels is not None:
        return data
    scored = {key: _scored(examples) for key, examples in further.items()}
    return replace(data, train=_scored(data.train), dev=_scored(data.dev), evaluations=scored)


def check_examples(
    examples: Sequence[Example],
    labels: Sequence[str] | None,
    source: str,
    rows: Sequence[int] | None = None,
    *,
    blank_texts: bool = False,
) -> None:
    """Raise `DataError` at the first example that cannot be used; `rows` are their row numbers in
    `source`.
    """
    numbers = range(1, len(examples) + 1) if rows is None else rows
    for row, example in zip(numbers, examples, strict=True):
        place = f"{source}, row {row}"
        if (example.pair is None) != (examples[0].pair is None):
            raise DataError(
                f"{place}: pair must be given in every row or in none; fill it in or drop the row"
            )
        for what, text in (("text", example.text), ("pair", example.pair)):
            if text is not None and not blank_texts:
                _check_text(text, what, place)
        _check_label(example.label, labels, place)


def _check_text(text: str, what: str, place: str) -> None:
    if not text.strip():
        raise DataError(
            f"{place}: {what} must not be empty, got {text!r}; fill it in or drop the row"
        )


def _check_label(label: int | float, labels: Sequence[str] | None, place: str) -> None:
    if labels is None:
        if not math.isfinite(label):
            raise DataError(
                f"{place}: label must be a finite number, got {label}; fill it in or drop the row"
            )
    elif isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(labels):
        raise DataError(
            f"{place}: label must be a class number between 0 and {len(labels) - 1}, got {label}; "
            f"correct the row or name all the classes"
        )


def _check_labels(labels: tuple[str, ...] | None, source: str) -> None:
    if labels is None:
        return
    if len(labels) < 2:
        raise DataError(
            f"{source}: labels must be at least two classes, got {list(labels)}; is it the right "
            "column?"
        )
    if len(set(labels)) < len(labels):
        raise DataError(
            f"{source}: labels must be different names, got {list(labels)}; rename or merge the "
            "classes"
        )


def _check_alike(
    data: TextData,
    others: Sequence[Example],
    train_source: str,
    source: str,
    rows: Sequence[int] | None,
) -> None:
    """The examples must be pairs if the training examples are, and have no other classes."""
    if data.has_pairs != (others[0].pair is not None):
        raise DataError(
            f"{train_source} and {source} must both hold pairs or both single texts, got one of "
            "each"
        )
    known = {example.label for example in data.train}
    numbers = range(1, len(others) + 1) if rows is None else rows
    for row, example in zip(numbers, others if data.labels is not None else (), strict=False):
        if example.label not in known:
            name = (data.labels or ())[int(example.label)]
            raise DataError(
                f"{source}, row {row}: every class must occur in {train_source}, got {name!r}, "
                "which does not; drop its rows or add training examples of it"
            )


def _scored(examples: Iterable[Example]) -> tuple[Example, ...]:
    """The examples with float labels, so that a score of 1 and of 1.0 have one fingerprint."""
    return tuple(replace(example, label=float(example.label)) for example in examples)


def _first_of_each_class(labels: Sequence[int | float]) -> list[int]:
    """The places at which a class occurs for the first time, in order."""
    first: dict[int | float, int] = {}
    for place, label in enumerate(labels):
        first.setdefault(label, place)
    return list(first.values())


def _plain(examples: Iterable[Example]) -> list[list[str | int | float | None]]:
    return [[example.text, example.pair, example.label] for example in examples]
