"""Texts to token ids, with the number of truncated texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import DataCollatorWithPadding


@dataclass(frozen=True)
class Encoded:
    """Samples ready for a collator, and the number of truncated texts."""

    samples: list[dict[str, Any]]
    cut: int


def encode(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    labels: Sequence[int | float],
    max_length: int,
) -> Encoded:
    """Tokenize texts (or pairs) with their labels; what is longer than ``max_length`` tokens is cut
    and counted.
    """
    lengths = tokenizer(
        list(texts), list(pairs) if pairs is not None else None, truncation=False, verbose=False
    )
    cut = sum(len(ids) > max_length for ids in lengths["input_ids"])
    fields = tokenizer(
        list(texts),
        list(pairs) if pairs is not None else None,
        truncation=True,
        max_length=max_length,
    )
    names = [name for name in fields if name in tokenizer.model_input_names]
    samples = [
        {**{name: fields[name][index] for name in names}, "labels": label}
        for index, label in enumerate(labels)
    ]
    return Encoded(samples, cut)


def padding_collator(tokenizer: Any, multiple: int = 1) -> Any:
    """Pads each batch to its longest sample, rounded up to a multiple: few widths are few graphs to
    compile.
    """
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple if multiple > 1 else None)


def longest_input(tokenizer: Any, positions: int | None, asked: int | None) -> int:
    """The maximum length of a text: the requested one, within the limits of model and tokenizer."""
    limits = [
        limit
        for limit in (positions, tokenizer.model_max_length)
        if limit is not None and limit < 10**6
    ]
    most = min(limits) if limits else 512
    if asked is not None and not 5 <= asked <= most:
        raise ValueError(
            f"max_length must be between 5 and {most}, which is what the model and its tokenizer "
            f"(model_max_length) take, got {asked}"
        )
    return asked if asked is not None else min(most, 128)
