"""Losses and answers against a model that reads one token after another."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from advreg.lab.kinds.language.encoding import Encoded, Encoder, collator, prepared_tokenizer
from advreg.lab.kinds.language.metrics import scores_of
from advreg.lab.kinds.language.samples import Sample
from advreg.lab.kinds.language.scorer import Scorer
from tiny_language import byte_tokenizer, language_model, questions


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
