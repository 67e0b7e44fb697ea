"""A trained model answers prompts as it does when it is scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.predictor import Text, load_predictor
from advreg.lab.runs.run import run
from advreg.lab.runs.workloads import load_workload
from tiny_language import language_folder, questions, write_lines


@pytest.mark.parametrize("lora", [0, 2])
def test_a_run_predicts_the_answers_that_it_was_scored_by(lora: int, tmp_path: Path) -> None:
    files = {name: str(write_lines(tmp_path / f"{name}.jsonl", questions(12))) for name in ("train", "dev")}  # fmt: skip
    settings = LanguageSettings(
        task="language", **files, model=str(language_folder(tmp_path / "tiny")), epochs=2, lora=lora,
        methods=("standard",), batch_size=4, learning_rate=1e-2, generate=True, answer_length=8,
    )  # fmt: skip
    plan = load_workload(settings).plans(settings, tmp_path / "runs")[0]
    run(plan, None, lambda _: None)
    lines = (plan.folder / "dev.answers.jsonl").read_text().splitlines()
    scored = [json.loads(line) for line in lines]
    predictor = load_predictor(plan.folder / "model", {"max_tokens": 8, "device": "cpu"})
    done: list[int] = []
    found = predictor.predict_all([Text(line["prompt"]) for line in scored], done.append)
    assert [row["prediction"] for row in found] == [line["answer"] for line in scored]
    assert sum(done) == len(scored)
    assert predictor.predict_all([Text(" ")]) == [{"prediction": None}]
