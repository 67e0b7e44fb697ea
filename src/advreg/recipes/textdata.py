"""Labelled texts, held as plain values: what every text recipe trains on and is measured on.

A loader (`tables`, `docstrings`) hands its examples to `make_text_data`, which checks them once and says what is
wrong in terms of the file and row the user can open; everything downstream may rely on the result.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


class DataError(ValueError):
    """The data cannot be used as it is; the text names the place and the remedy."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts; `label` is a class number or, for regression, a score."""

    text: str
    pair: str | None
    label: int | float


@dataclass(frozen=True, slots=True)
class TextData:
    """A training and a development split; `labels` names the classes, and None means regression.

    Build one with `make_text_data`, which checks it.
    """

    name: str
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    labels: tuple[str, ...] | None

    @property
    def is_regression(self) -> bool:
        """Are the labels scores rather than class numbers?"""
        return self.labels is None

    @property
    def num_labels(self) -> int:
        """How many outputs a model needs: the number of classes, or 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def has_pairs(self) -> bool:
        """Does every example hold two texts?"""
        return self.train[0].pair is not None

    def fingerprint(self) -> str:
        """SHA-256 of all examples in order and the class names; the data set's name is left out."""
        content = {"dev": _plain(self.dev), "labels": self.labels, "train": _plain(self.train)}
        canonical = json.dumps(content, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def subset(self, train: int, seed: int) -> TextData:
        """The same task with `train` random training examples, in their old order; `dev` stays whole.

        Every class keeps at least one example, and of two subsets with one seed the larger holds the smaller.
        """
        order = list(range(len(self.train)))
        random.Random(seed).shuffle(order)
        first = _first_of_each_class([self.train[index].label for index in order]) if self.labels is not None else []
        least = max(1, len(first))
        if not least <= train <= len(order):
            raise DataError(
                f"train must be between {least} (one example of each class) and {len(order)} (all there are), "
                f"got {train}"
            )
        must = [order[place] for place in first]
        chosen = dict.fromkeys(must + order)  # an ordered set: one of each class, then the others as they were drawn
        return replace(self, train=tuple(self.train[index] for index in sorted(list(chosen)[:train])))


def make_text_data(
    name: str,
    train: Iterable[Example],
    dev: Iterable[Example],
    labels: Sequence[str] | None,
    *,
    train_source: str = "train",
    dev_source: str = "dev",
) -> TextData:
    """Check the examples and hold them as a `TextData`; the sources are what errors call the two splits."""
    data = TextData(name, tuple(train), tuple(dev), None if labels is None else tuple(labels))
    _check_labels(data.labels, train_source)
    for examples, source in ((data.train, train_source), (data.dev, dev_source)):
        if not examples:
            raise DataError(f"{source} must hold at least one example, got none; is the file empty?")
        check_examples(examples, data.labels, source)
    if data.has_pairs != (data.dev[0].pair is not None):
        raise DataError(f"{train_source} and {dev_source} must both hold pairs or both single texts, got one of each")
    if data.labels is not None:
        _check_dev_classes(data, data.labels, train_source, dev_source)
        return data
    return replace(data, train=_scored(data.train), dev=_scored(data.dev))


def check_examples(
    examples: Sequence[Example], labels: Sequence[str] | None, source: str, rows: Sequence[int] | None = None
) -> None:
    """Raise `DataError` at the first example that cannot be used; `rows` are their row numbers in `source`."""
    numbers = range(1, len(examples) + 1) if rows is None else rows
    for row, example in zip(numbers, examples, strict=True):
        place = f"{source}, row {row}"
        _check_text(example.text, "text", place)
        if (example.pair is None) != (examples[0].pair is None):
            raise DataError(f"{place}: pair must be given in every row or in none; fill it in or drop the row")
        if example.pair is not None:
            _check_text(example.pair, "pair", place)
        _check_label(example.label, labels, place)


def _check_text(text: str, what: str, place: str) -> None:
    if not text.strip():
        raise DataError(f"{place}: {what} must not be empty, got {text!r}; fill it in or drop the row")


def _check_label(label: int | float, labels: Sequence[str] | None, place: str) -> None:
    if labels is None:
        if not math.isfinite(label):
            raise DataError(f"{place}: label must be a finite number, got {label}; fill it in or drop the row")
    elif isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(labels):
        raise DataError(
            f"{place}: label must be a class number between 0 and {len(labels) - 1}, got {label}; "
            f"correct the row or name all the classes"
        )


def _check_labels(labels: tuple[str, ...] | None, source: str) -> None:
    if labels is None:
        return
    if len(labels) < 2:
        raise DataError(f"{source}: labels must be at least two classes, got {list(labels)}; is it the right column?")
    if len(set(labels)) < len(labels):
        raise DataError(f"{source}: labels must be different names, got {list(labels)}; rename or merge the classes")


def _check_dev_classes(data: TextData, labels: Sequence[str], train_source: str, dev_source: str) -> None:
    known = {example.label for example in data.train}
    for row, example in enumerate(data.dev, start=1):
        if example.label not in known:
            raise DataError(
                f"{dev_source}: every class must occur in {train_source}, got {labels[int(example.label)]!r} "
                f"(example {row}), which does not; drop its rows or add training examples of it"
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
