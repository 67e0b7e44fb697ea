"""Scores against references of a few lines."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from advreg.lab.kinds.items import Items
from advreg.lab.kinds.language.encoding import Encoded, Encoder, collator, prepared_tokenizer
from advreg.lab.kinds.language.samples import Sample
from advreg.lab.kinds.language.scores import (
    Scorer,
    bleu_counts,
    bleu_of,
    bleu_signature,
    is_match,
    rescored,
    scores_of,
)
from tiny_language import byte_tokenizer, language_model, questions

WORDS = ["a", "cheap", "pub", "by", "the", "river", "serves", "fish", "."]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    tokenizer = prepared_tokenizer(byte_tokenizer())
    return Scorer(language_model(), tokenizer, collator(tokenizer, 8))


def samples() -> list[Sample]:
    pairs = [(row["prompt"], row["completion"]) for row in questions(5)]
    found = [Sample((("user", prompt), ("assistant", answer))) for prompt, answer in pairs]
    return [*found, Sample(found[0].turns, ("one", "another answer"))]


def naive_loss(model: Any, row: dict[str, list[int]]) -> tuple[float, int]:
    """Token after token."""
    total, count = 0.0, 0
    for place in range(1, len(row["input_ids"])):
        if row["labels"][place] != -100:
            logits = model(torch.tensor([row["input_ids"][:place]])).logits[0, -1].double()
            total -= float(logits.log_softmax(-1)[row["labels"][place]])
            count += 1
    return total, count


def test_the_loss_of_a_sample_is_that_of_its_answer_tokens_one_by_one(scorer: Scorer) -> None:
    encoded = Encoder(scorer.tokenizer).encode(samples(), None, cuts=False)
    found = scorer.losses(encoded, 6)
    losses, tokens = [0.0] * 6, [0] * 6
    with torch.no_grad():
        for sample, row in zip(encoded.samples, encoded.rows, strict=True):
            loss, count = naive_loss(scorer.model, row)
            losses[sample] += loss
            tokens[sample] += count
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(losses, abs=1e-3)
    mean = sum(losses) / sum(tokens)
    assert scores_of(found) == {
        "loss": pytest.approx(mean, abs=1e-5),
        "perplexity": pytest.approx(math.exp(mean), rel=1e-5),
    }
    assert scorer.model.training  # as it was


def test_a_row_without_labels_counts_nothing(scorer: Scorer) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100] * 3}, {"input_ids": [5, 6], "labels": [5, 6]}]
    found = scorer.losses(Encoded(rows, [0, 1]), 2)
    assert (found["loss"][0], found["tokens"]) == (0.0, [0, 1])


def test_answers_are_greedy_whatever_shares_their_batch(scorer: Scorer) -> None:
    prompts = [Encoder(scorer.tokenizer).prompt_ids(sample) for sample in samples()]
    answers = scorer.generate(prompts, 6)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            while len(ids) < len(prompt) + 6 and ids[-1] != 2:
                ids.append(int(scorer.model.eval()(torch.tensor([ids])).logits[0, -1].argmax()))
        text = scorer.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        assert answer == text.strip()
    scorer.model.train()


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_bleu_of_several_references_is_that_of_sacrebleu(seed: int) -> None:
    answers, draw = texts(seed, 10), random.Random(seed)
    references = [texts(100 * seed + index, draw.randint(1, 4)) for index in range(10)]
    longest = max(map(len, references))
    padded = [[each[place] if place < len(each) else None for each in references] for place in range(longest)]  # fmt: skip
    expected = BLEU()
    score = expected.corpus_score(answers, padded).score  # type: ignore[arg-type]
    assert bleu_of(bleu_counts(answers, references)) == pytest.approx(score, rel=1e-12)
    assert bleu_signature(references) == str(expected.get_signature())


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("so\n#### 72", ["#### 72"], True),
        ("#### 1,072 ", ["#### $1072.0"], True),
        ("#### 7", ["#### 72"], False),
        ("72", ["#### 72"], False),
        ("#### blue", ["#### red", "#### blue"], True),
    ],
)
def test_an_answer_is_right_if_the_pattern_finds_the_same(
    answer: str, references: list[str], expected: bool
) -> None:
    assert is_match("#### (.*)", answer, references) is expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_a_resample_has_the_scores_of_the_drawn_samples(rows: list[int]) -> None:
    answers, references = texts(0, 4), [texts(index + 1, 2) for index in range(4)]
    columns: dict[str, list[Any]] = {
        "loss": [1.5, 2.0, 0.25, 9.0],
        "tokens": [3, 2, 1, 4],
        "right": [1, 0, 0, 1],
        "bleu": bleu_counts(answers, references),
    }
    items = Items(
        kind="language", fingerprint="", main="test", sets={"test": columns, "dev": columns}
    )
    names = ["loss", "perplexity", "exact_match", "bleu", "dev_loss"]
    found = rescored(items, names, {"test": rows})
    loss = sum(columns["loss"][row] for row in rows) / sum(columns["tokens"][row] for row in rows)
    drawn = [list(each) for each in zip(*(references[row] for row in rows), strict=True)]
    bleu = BLEU().corpus_score([answers[row] for row in rows], drawn).score
    assert found == {
        "loss": pytest.approx(loss),
        "perplexity": pytest.approx(math.exp(loss)),
        "exact_match": pytest.approx(sum(columns["right"][row] for row in rows) / len(rows)),
        "bleu": pytest.approx(bleu, rel=1e-12),
        "dev_loss": pytest.approx(1.275),
    }
