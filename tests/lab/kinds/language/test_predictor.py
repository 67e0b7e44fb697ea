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
from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.predictor import Text
from advreg.lab.runs.predictors import load_predictor
from advreg.lab.runs.run import run
from advreg.lab.runs.workloads import load_workload
from tiny_language import (
    byte_tokenizer,
    language_folder,
    language_model,
    questions,
    write_lines,
)

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


@pytest.mark.parametrize("lora", [0, 2])
def test_a_run_predicts_the_answers_that_it_was_scored_by(lora: int, tmp_path: Path) -> None:
    names = ("train", "dev")
    files = {name: str(write_lines(tmp_path / f"{name}.jsonl", questions(12))) for name in names}
    settings = LanguageSettings(
        task="language", **files, model=str(language_folder(tmp_path / "tiny")), epochs=2, lora=lora,
        methods=("standard",), batch_size=4, learning_rate=1e-2, generate=True, answer_length=8,
    )  # fmt: skip
    plan = load_workload(settings).plans(settings, tmp_path / "runs")[0]
    run(plan, None, lambda _: None)
    lines = (plan.folder / "dev.answers.jsonl").read_text().splitlines()
    scored = [json.loads(line) for line in lines]
    predictor = load_predictor(plan.folder / "model", {"answer_length": 8, "device": "cpu"})
    done: list[int] = []
    found = predictor.predict_all([Text(line["prompt"]) for line in scored], done.append)
    assert [row["prediction"] for row in found] == [line["answer"] for line in scored]
    assert sum(done) == len(scored)
