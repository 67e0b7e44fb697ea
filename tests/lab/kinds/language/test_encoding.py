"""Only answers have labels, by whatever template they are written."""

from __future__ import annotations

from typing import Any

import pytest

from advreg.lab.kinds.language.encoding import Encoder, collator, prepared_tokenizer
from advreg.lab.kinds.language.samples import Sample
from advreg.lab.kinds.sources import DataError
from tiny_language import CHAT, byte_tokenizer

TURNS = (
    ("system", "Be brief."),
    ("user", "One?"),
    ("assistant", "Yes, one."),
    ("user", "Two?"),
    ("assistant", "No."),
)
IGNORED = -100


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return prepared_tokenizer(byte_tokenizer())


def learnt(tokenizer: Any, row: dict[str, list[int]]) -> list[str]:
    """The runs of tokens that have labels, as text; each label must be its own token."""
    parts: list[list[int]] = [[]]
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        if label == IGNORED:
            parts.append([])
        else:
            assert label == token
            parts[-1].append(token)
    return [tokenizer.decode(part) for part in parts if part]


def test_every_answer_of_a_chat_is_learnt_with_the_end_of_its_turn(tokenizer: Any) -> None:
    (row,) = Encoder(tokenizer).encode([Sample(TURNS)], None, cuts=True).rows
    assert learnt(tokenizer, row) == ["Yes, one.</s>", "No.</s>"]
    assert tokenizer.decode(row["input_ids"]) == (
        "<s>system: Be brief.</s>\n<s>user: One?</s>\n<s>assistant: Yes, one.</s>\n"
        "<s>user: Two?</s>\n<s>assistant: No.</s>"
    )


def test_a_prompt_to_generate_from_is_what_stands_in_front_of_the_answer(tokenizer: Any) -> None:
    sample, encoder = Sample(TURNS), Encoder(tokenizer)
    (row,) = encoder.encode([sample], None, cuts=True).rows
    prompt, answer = encoder.prompt_ids(sample), tokenizer("No.</s>")["input_ids"]
    assert row["input_ids"] == prompt + answer


def test_a_sample_has_a_row_for_each_reference(tokenizer: Any) -> None:
    sample = Sample(TURNS[1:3], ("Yes.", "Sure."))
    encoded = Encoder(tokenizer).encode([Sample(TURNS), sample], None, cuts=True)
    assert [learnt(tokenizer, row) for row in encoded.rows[1:]] == [["Yes.</s>"], ["Sure.</s>"]]
    assert encoded.samples == [0, 1, 1]
    assert encoded.learnt == len("Yes, one.") + len("No.") + len("Yes.") + len("Sure.") + 4


@pytest.mark.parametrize("begins", [False, True])
def test_without_a_template_turns_stand_in_lines(begins: bool) -> None:
    tokenizer = byte_tokenizer(None)
    if begins:  # as Llama's tokenizer begins texts
        from tokenizers.processors import TemplateProcessing

        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    tokenizer = prepared_tokenizer(tokenizer)
    (row,) = Encoder(tokenizer).encode([Sample(TURNS[1:])], None, cuts=True).rows
    first = "<s>" if begins else ""
    assert tokenizer.decode(row["input_ids"]) == f"{first}One?\nYes, one.</s>\nTwo?\nNo.</s>"
    assert learnt(tokenizer, row) == ["Yes, one.</s>", "No.</s>"]


def test_an_answer_ends_where_its_template_does_not_end_it() -> None:
    tokenizer = byte_tokenizer("{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
                               "{% if add_generation_prompt %}[assistant]{% endif %}")  # fmt: skip
    (row,) = Encoder(tokenizer).encode([Sample(TURNS[1:3])], None, cuts=True).rows
    assert tokenizer.decode(row["input_ids"]) == "[user]One?[assistant]Yes, one.</s>"
    assert learnt(tokenizer, row) == ["Yes, one.</s>"]


def test_a_template_that_changes_earlier_turns_is_refused() -> None:
    tokenizer = byte_tokenizer("{{ messages|length }}" + CHAT)
    with pytest.raises(DataError, match="chat template must write a chat turn by turn"):
        Encoder(tokenizer).encode([Sample(TURNS)], None, cuts=True)


def test_rows_that_are_too_long_are_cut_and_counted(tokenizer: Any) -> None:
    samples = [Sample(TURNS), Sample(TURNS[1:3])]
    whole = Encoder(tokenizer).encode(samples, 60, cuts=False)
    cut = Encoder(tokenizer).encode(samples, 60, cuts=True)
    assert (whole.cut, cut.cut) == (1, 1)
    assert cut.rows[0] == {name: ids[:60] for name, ids in whole.rows[0].items()}
    assert cut.rows[1] == whole.rows[1]


def test_plain_text_is_divided_and_all_of_it_is_learnt(tokenizer: Any) -> None:
    text = "A text of 27 letters, or so"
    encoded = Encoder(tokenizer).encode([Sample((("", text),)), Sample((("", "B"),))], 10, True)
    assert "".join(tokenizer.decode(row["input_ids"]) for row in encoded.rows) == f"{text}</s>B</s>"
    assert all(row["labels"] == row["input_ids"] for row in encoded.rows)
    assert [len(row["input_ids"]) for row in encoded.rows] == [10, 10, 8, 2]
    assert (encoded.samples, encoded.cut) == ([0, 0, 0, 1], 0)


def test_batches_are_padded_on_the_right_without_labels(tokenizer: Any) -> None:
    rows = Encoder(tokenizer).encode([Sample(TURNS), Sample(TURNS[1:3])], None, cuts=True).rows
    batch = collator(tokenizer, 8)([dict(row) for row in rows])
    length = len(rows[1]["input_ids"])
    assert batch["input_ids"].shape[1] % 8 == 0
    assert batch["input_ids"][1, :length].tolist() == rows[1]["input_ids"]
    assert not batch["attention_mask"][1, length:].any()
    assert (batch["labels"][1, length:] == IGNORED).all()


def test_a_tokenizer_that_cannot_end_an_answer_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="must have an end-of-sequence token"):
        prepared_tokenizer(tokenizer)
