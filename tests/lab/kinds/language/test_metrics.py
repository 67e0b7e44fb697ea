"""Metrics against references of a few lines."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from advreg.lab.kinds.items import Items
from advreg.lab.kinds.language.metrics import (
    bleu_counts,
    bleu_of,
    bleu_signature,
    is_match,
    rescored,
)

WORDS = ["a", "cheap", "pub", "by", "the", "river", "serves", "fish", "."]


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
