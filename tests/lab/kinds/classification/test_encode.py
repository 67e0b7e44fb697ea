"""Texts to samples: what is cut is counted, and a length stays within what model and tokenizer
take.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from advreg.lab.kinds.classification.encode import encode, longest_input, padding_collator
from advreg.lab.kinds.wordpieces import train_tokenizer

TEXTS = ["a b c", "a", "a b c d e f g", "b c d e f"]
PAIRS = ["c", "a b c d e", "d", "g"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["a b c d e f g"], max_length=64)


def test_samples_are_what_the_tokenizer_makes_of_each_text(tokenizer: Any) -> None:
    found = encode(tokenizer, TEXTS, None, [0, 1, 0, 1], max_length=64)
    assert found.cut == 0
    for sample, text, label in zip(found.samples, TEXTS, [0, 1, 0, 1], strict=True):
        alone = tokenizer(text)
        assert sample == {name: alone[name] for name in tokenizer.model_input_names} | {
            "labels": label
        }


def test_pairs_are_read_together_with_their_types(tokenizer: Any) -> None:
    found = encode(tokenizer, TEXTS, PAIRS, [0.5] * 4, max_length=64)
    for sample, text, pair in zip(found.samples, TEXTS, PAIRS, strict=True):
        assert sample["input_ids"] == tokenizer(text, pair)["input_ids"]
        assert sample["token_type_ids"] == tokenizer(text, pair)["token_type_ids"]
        assert sample["labels"] == 0.5


@pytest.mark.parametrize("longest", [5, 6, 7, 8, 9])
def test_what_is_too_long_is_cut_and_counted(longest: int, tokenizer: Any) -> None:
    """Lengths with [CLS] and [SEP]: 5, 3, 9, 7; exactly as long as allowed is not cut."""
    found = encode(tokenizer, TEXTS, None, [0] * 4, max_length=longest)
    lengths = [5, 3, 9, 7]
    assert found.cut == sum(length > longest for length in lengths)
    assert [len(sample["input_ids"]) for sample in found.samples] == [
        min(length, longest) for length in lengths
    ]
    paired = encode(tokenizer, TEXTS, PAIRS, [0] * 4, max_length=longest)
    lengths = [
        len(tokenizer(text, pair)["input_ids"]) for text, pair in zip(TEXTS, PAIRS, strict=True)
    ]
    assert paired.cut == sum(length > longest for length in lengths)


def test_the_collator_pads_to_the_longest_of_the_batch(tokenizer: Any) -> None:
    samples = encode(tokenizer, TEXTS, None, [0, 1, 2, 0], max_length=64).samples
    batch = padding_collator(tokenizer)(samples[:2])
    assert batch["input_ids"].shape == (2, 5)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["input_ids"][1, 3:].tolist() == [tokenizer.pad_token_id] * 2
    assert torch.equal(batch["labels"], torch.tensor([0, 1]))


@pytest.mark.parametrize(("multiple", "width"), [(1, 5), (4, 8), (5, 5)])
def test_the_collator_rounds_widths_up(tokenizer: Any, multiple: int, width: int) -> None:
    samples = encode(tokenizer, TEXTS, None, [0, 1, 2, 0], max_length=64).samples
    batch = padding_collator(tokenizer, multiple)(samples[:2])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, width)
    assert batch["attention_mask"].sum(1).tolist() == [5, 3]


@pytest.mark.parametrize(
    ("positions", "tokenizer_max", "asked", "expected"),
    [
        (512, 10**30, None, 128),  # a tokenizer that does not know says 10³⁰
        (64, 10**30, None, 64),
        (512, 32, None, 32),
        (None, 10**30, None, 128),
        (None, 10**30, 512, 512),
        (512, 256, 256, 256),
        (512, 10**30, 5, 5),
    ],
)
def test_the_length_is_what_was_asked_for_within_what_is_taken(
    positions: int | None, tokenizer_max: int, asked: int | None, expected: int
) -> None:
    assert (
        longest_input(SimpleNamespace(model_max_length=tokenizer_max), positions, asked) == expected
    )


@pytest.mark.parametrize(
    ("positions", "tokenizer_max", "asked", "most"),
    [(64, 512, 65, 64), (512, 64, 100, 64), (None, 10**30, 513, 512), (64, 64, 4, 64)],
)
def test_a_length_out_of_bounds_names_the_bounds(
    positions: int | None, tokenizer_max: int, asked: int, most: int
) -> None:
    with pytest.raises(
        ValueError, match=f"max_length must be between 5 and {most}, .* got {asked}"
    ):
        longest_input(SimpleNamespace(model_max_length=tokenizer_max), positions, asked)
