from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from advreg.lab.kinds.translation.subwords import (
    BEGIN,
    END,
    PADDING,
    SPECIAL,
    UNKNOWN,
    SubwordError,
    Subwords,
    learn_subwords,
)
from number_words import in_digits, in_words

WORDS = [in_words(number) for number in range(1000, 1400)]
DIGITS = [in_digits(number) for number in range(1000, 1400)]


def test_text_comes_back_from_its_pieces() -> None:
    found = learn_subwords(WORDS, DIGITS, 60)
    for pieces, texts in ((found.source, WORDS), (found.target, DIGITS)):
        assert pieces.decode(pieces.encode(texts)) == texts


def test_the_same_text_gives_the_same_pieces() -> None:
    one, same = (learn_subwords(WORDS, DIGITS, 60, kind="unigram") for _ in "ab")
    assert one.source.proto == same.source.proto


def test_every_sentence_ends_and_special_ids_are_those_of_the_model() -> None:
    pieces = learn_subwords(WORDS, DIGITS, 60).source
    assert all(row[-1] == END and END not in row[:-1] for row in pieces.encode(WORDS))
    assert pieces.encode(["Ω"])[0][-2:] == [UNKNOWN, END]
    assert SPECIAL == {"bos": BEGIN, "pad": PADDING, "eos": END}
    assert len(pieces) == 60


def test_decoding_stops_at_the_end_and_leaves_padding_out() -> None:
    pieces = learn_subwords(WORDS, DIGITS, 60).source
    row = pieces.encode(["one hundred"])[0]
    assert pieces.decode([[BEGIN, *row, PADDING, *row]]) == ["one hundred"]
    assert pieces.decode([[END], []]) == ["", ""]


def test_vocabularies_are_shared_or_apart() -> None:
    joint, apart = learn_subwords(WORDS, DIGITS, 60), learn_subwords(WORDS, DIGITS, 25, joint=False)
    assert joint.joint
    assert not apart.joint
    digit = apart.source.encode(["7"])[0]
    assert UNKNOWN in digit
    assert UNKNOWN not in joint.source.encode(["7"])[0]


@pytest.mark.parametrize("joint", [True, False])
def test_a_saved_vocabulary_is_the_same_again(tmp_path: Path, joint: bool) -> None:
    learnt = learn_subwords(WORDS, DIGITS, 25 if not joint else 60, joint=joint)
    learnt.save(tmp_path)
    again = Subwords.load(tmp_path)
    assert again.joint == joint
    assert (again.source.proto, again.target.proto) == (learnt.source.proto, learnt.target.proto)
    assert again.source.encode(WORDS) == learnt.source.encode(WORDS)


@pytest.mark.filterwarnings("ignore:Recommended")  # of sacremoses, which changes nothing
@pytest.mark.parametrize("joint", [True, False])
def test_a_saved_vocabulary_is_a_tokenizer_of_transformers_too(tmp_path: Path, joint: bool) -> None:
    learnt = learn_subwords(WORDS, DIGITS, 60 if joint else 25, joint=joint)
    learnt.save(tmp_path, positions=33)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.model_max_length == 33
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (
        PADDING,
        END,
        UNKNOWN,
    )
    source, target = learnt.source.encode(WORDS), learnt.target.encode(DIGITS)
    assert tokenizer(WORDS)["input_ids"] == source
    assert tokenizer(text_target=DIGITS)["input_ids"] == target
    assert (
        tokenizer.batch_decode([[END, *row, PADDING] for row in target], skip_special_tokens=True)
        == DIGITS
    )


def test_two_vocabularies_stay_two_even_if_they_are_the_same(tmp_path: Path) -> None:
    learn_subwords(WORDS, WORDS, 40, joint=False).save(tmp_path)
    assert (tmp_path / "source.spm").read_bytes() == (tmp_path / "target.spm").read_bytes()
    assert not Subwords.load(tmp_path).joint


def test_text_is_not_normalised() -> None:
    texts = ["① ﬁne … “quotes”"] * 10
    pieces = learn_subwords(texts, texts, 30).source
    assert pieces.decode(pieces.encode(texts[:1])) == texts[:1]


@pytest.mark.parametrize(("size", "told"), [(9000, "too high"), (5, "smaller than required_chars")])
def test_a_vocabulary_that_does_not_fit_the_text_is_named(size: int, told: str) -> None:
    with pytest.raises(
        SubwordError,
        match=rf"vocabulary must fit .* got {size} for 800 lines .*{told}.*--vocabulary",
    ) as caught:
        learn_subwords(WORDS, DIGITS, size)
    assert "INTERNAL" not in str(caught.value)


def test_a_coverage_outside_its_range_is_named() -> None:
    with pytest.raises(
        SubwordError, match=r"character coverage must be above 0 and at most 1, got 1\.5"
    ):
        learn_subwords(WORDS, DIGITS, 60, coverage=1.5)


def test_a_folder_or_file_that_is_no_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SubwordError,
        match=r"must hold source\.spm, target\.spm, vocab\.json, .*; give its model folder",
    ):
        Subwords.load(tmp_path)
    learn_subwords(WORDS, DIGITS, 60).save(tmp_path)
    (tmp_path / "source.spm").write_bytes(b"nonsense")
    with pytest.raises(SubwordError, match=r"source\.spm: not a model of sentencepiece"):
        Subwords.load(tmp_path)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        SubwordError, match=r"needs the package sentencepiece; install advreg\[mt\]"
    ):
        learn_subwords(WORDS, DIGITS, 60)
