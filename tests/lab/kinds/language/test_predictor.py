"""Answers to prompts against a model that writes one token after another."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from advreg.cli.predict import Order, predict
from advreg.lab.kinds.language.encoding import Encoder, prepared_tokenizer
from advreg.lab.kinds.language.predictor import LanguagePredictor
from advreg.lab.kinds.predictor import Text
from advreg.lab.runs.predictors import load_predictor
from tiny_language import byte_tokenizer, language_model

PROMPTS = ["2 + 2 =", "", "Name a colour."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    language_model().save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def naive_answer(predictor: LanguagePredictor, prompt: str, longest: int) -> str:
    """The most likely token, one after the other."""
    model, tokenizer = predictor.scorer.model, predictor.scorer.tokenizer
    ids = Encoder(prepared_tokenizer(tokenizer)).turn_ids([("user", prompt)])
    written: list[int] = []
    with torch.no_grad():
        while len(written) < longest:
            token = int(model(torch.tensor([ids + written])).logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            written.append(token)
    return str(tokenizer.decode(written, skip_special_tokens=True)).strip()


def test_a_language_model_answers_each_prompt_greedily(folder: Path) -> None:
    predictor = load_predictor(folder, {"answer_length": 6})
    assert isinstance(predictor, LanguagePredictor)
    rows = predictor.predict_all([Text(prompt) for prompt in PROMPTS])
    assert [row["prediction"] for row in rows] == [
        naive_answer(predictor, prompt, 6) if prompt else None for prompt in PROMPTS
    ]


def test_the_command_writes_an_answer_to_each_line(folder: Path) -> None:
    output = io.StringIO()
    lines = "".join(f"{prompt}\n" for prompt in PROMPTS)
    assert predict(Order(folder, options={"answer_length": 4}), io.StringIO(lines), output) == 3
    rows = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(rows) == 3
    assert rows[1]["prediction"] is None
    assert all("prediction" in row for row in rows)


def test_the_length_of_answers_must_be_a_count(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"answer_length must be a whole number of 1 or more, got"):
        load_predictor(folder, {"answer_length": 0})
