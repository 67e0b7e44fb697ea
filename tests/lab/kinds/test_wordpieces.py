from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advreg.lab.kinds.wordpieces import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEXTS = [
    "The handler returns a new event loop.",
    "Handlers return the loops, and a loop handles events!",
    "Unhandled events are returned to the café's loop.",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocabulary=200, max_length=12)


def pieces(tokenizer: PreTrainedTokenizerFast, *texts: str) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(*texts, truncation=True).input_ids))


def longest_match(word: str, vocabulary: dict[str, int]) -> list[str]:
    """WordPiece as its paper has it: always the longest piece that fits."""
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = [
            end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary
        ]
        if not ends:
            return ["[UNK]"]
        found.append(prefix + word[start : ends[0]])
        start = ends[0]
    return found


def test_texts_are_framed_and_the_second_has_token_type_one(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    single, pair = tokenizer("the loop"), tokenizer("the loop", "a handler")
    assert tokenizer.convert_ids_to_tokens(single.input_ids) == ["[CLS]", "the", "loop", "[SEP]"]
    assert single.token_type_ids == [0, 0, 0, 0]
    assert tokenizer.convert_ids_to_tokens(pair.input_ids)[4:] == [
        *pieces(tokenizer, "a handler")[1:-1],
        "[SEP]",
    ]
    assert pair.token_type_ids == [0] * 4 + [1] * (len(pair.input_ids) - 4)


def test_special_tokens_come_first_and_padding_is_zero(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(range(5)) == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert tokenizer.pad_token_id == 0
    batch = tokenizer(["the loop", "the"], padding=True)
    assert batch.input_ids[1][-1] == 0
    assert batch.attention_mask[1] == [1, 1, 1, 0]


def test_only_the_special_tokens_are_special(tokenizer: PreTrainedTokenizerFast) -> None:
    assert sorted(tokenizer.all_special_tokens) == ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"]
    assert pieces(tokenizer, "##e")[1:-1] == ["[UNK]", "[UNK]", "e"]


def test_texts_are_cut_at_the_maximum_length(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer("loop " * 50, truncation=True).input_ids) == 12
    pair = tokenizer("loop " * 50, "event " * 50, truncation=True)
    assert len(pair.input_ids) == 12
    assert set(pair.token_type_ids) == {0, 1}


def test_case_and_accents_are_ignored(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer("LOOP Café").input_ids == tokenizer("loop cafe").input_ids


@settings(max_examples=50)
@given(word=st.text(st.sampled_from("acdefhlnoprstuvw"), min_size=1, max_size=12))
def test_words_become_the_longest_pieces_that_fit(
    tokenizer: PreTrainedTokenizerFast, word: str
) -> None:
    assert tokenizer.tokenize(word) == longest_match(word, tokenizer.get_vocab())


def test_no_word_of_the_texts_is_unknown_and_they_can_be_read_back(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    whole = train_tokenizer(TEXTS, vocabulary=200, max_length=64)
    for text in TEXTS[:2]:
        assert "[UNK]" not in pieces(whole, text)
        assert whole.decode(whole(text).input_ids, skip_special_tokens=True) == text.lower()


def test_a_character_never_seen_is_unknown(tokenizer: PreTrainedTokenizerFast) -> None:
    assert pieces(tokenizer, "the 漢") == ["[CLS]", "the", "[UNK]", "[SEP]"]


@pytest.mark.parametrize("vocabulary", [16, 40, 100])
def test_the_vocabulary_is_kept_to_and_its_numbers_have_no_gap(vocabulary: int) -> None:
    tokenizer = train_tokenizer(TEXTS, vocabulary=vocabulary)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert len(tokenizer) <= vocabulary


def test_with_more_characters_than_room_the_frequent_ones_are_kept() -> None:
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    tokenizer = train_tokenizer([*TEXTS * 3, rare], vocabulary=120)
    assert len(tokenizer) <= 120
    assert "[UNK]" not in pieces(tokenizer, TEXTS[0])
    assert "[UNK]" in pieces(tokenizer, rare)


def test_two_processes_learn_the_same_pieces_with_the_same_numbers() -> None:
    texts = [f"{left}{right} {right}{left}" for left in "abcdefgh" for right in "ijklmnop"]
    code = (
        "from advreg.lab.kinds.wordpieces import train_tokenizer as train; "
        f"print(sorted(train({texts!r}, vocabulary=90).get_vocab().items()))"
    )
    source = str(Path(sys.modules["advreg"].__path__[0]).parent)
    environment = os.environ | {"PYTHONPATH": source}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = [
        str(sorted(train_tokenizer(texts, vocabulary=90).get_vocab().items())) for _ in range(5)
    ]
    assert {answer.stdout.strip(), *here} == {here[0]}


def test_texts_may_come_from_a_generator(tokenizer: PreTrainedTokenizerFast) -> None:
    def stream() -> Iterator[str]:
        yield from TEXTS

    assert train_tokenizer(stream(), vocabulary=200).get_vocab() == tokenizer.get_vocab()


def test_a_saved_tokenizer_is_the_same_when_loaded(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer.save_pretrained(tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for texts in [("the loop returns",), ("the loop", "an event")]:
        assert dict(loaded(*texts)) == dict(tokenizer(*texts))
    assert loaded.model_max_length == 12


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (TEXTS, {"max_length": 4}, "max_length must be at least 5, the length of .*, got 4"),
        (TEXTS, {"vocabulary": 10}, "vocabulary must be at least 16, got 10"),
        ([], {}, "texts must hold at least one word, got 0 texts without any"),
        ([" ", ""], {}, "texts must hold at least one word, got 2 texts without any"),
    ],
)
def test_settings_that_cannot_work_are_named(
    texts: list[str], settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, **settings)
