"""Settings of language modelling, and the files that are told to be of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.sources import DataError
from advreg.lab.runs.bases import Asked
from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.compare_settings import read_compare
from little_tables import sentiment, write_table
from tiny_language import questions, write_lines


def settings(**given: Any) -> LanguageSettings:
    return LanguageSettings(**{"task": "language", "train": "a.jsonl", "model": "tiny", **given})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "small"}, "model must be a pretrained causal language model, got 'small'"),
        ({"train": None}, "task 'language' needs a training file; give --train FILE"),
        ({"task": "gsm8k"}, "the gsm8k task brings its own data; leave --train, --dev and --test"),
        ({"data": "sft"}, "data is a folder of the known tasks gsm8k, e2e_low, but the task is"),
        ({"answer_pattern": "("}, r"answer_pattern must be a regular expression, got '\('"),
        ({"lora": -1}, "lora must be a whole number of 0 or more, got -1"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, got 'int8'"),
        ({"max_length": 1}, "max_length must be a whole number of 2 or more, got 1"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        settings(**given)


def test_adapters_learn_faster_unless_a_rate_is_given() -> None:
    rates = [settings(**more).facts()["learning_rate"] for more in ({}, {"lora": 8}, {"lora": 8, "learning_rate": 1e-5})]  # fmt: skip
    assert rates == [1e-4, 3e-4, 1e-5]


def test_a_known_task_knows_where_its_answer_stands() -> None:
    assert settings(task="gsm8k", train=None).facts()["answer_pattern"] == "#### (.*)"
    assert settings().pattern is None


@pytest.mark.parametrize(
    ("name", "rows", "more", "task"),
    [
        ("a.jsonl", questions(2), {}, "language"),
        ("a.csv", questions(2), {}, "language"),
        ("a.parquet", questions(2), {}, "language"),
        ("a.csv", [{"text": "one"}, {"text": "two"}], {}, "language"),
        ("a.csv", sentiment(4), {}, "files"),
        ("a.csv", sentiment(4), {"text_column": "text"}, "files"),
        ("a.csv", [{"q": "one", "a": "two"}], {"prompt_column": "q"}, "language"),
        ("a.xlsx", None, {}, "files"),
        ("a.txt", None, {}, "language"),
    ],
)
def test_the_columns_of_the_training_file_tell_the_kind_of_task(
    name: str, rows: Any, more: dict[str, str], task: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if rows is not None:
        (write_lines if path.suffix == ".jsonl" else write_table)(path, rows)
    assert Asked({"train": str(path), **more}).tasks == [task]


def test_compare_tunes_the_learning_rate_of_a_language_model(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", questions(8))
    flags = {"train": str(path), "model": "tiny", "methods": "standard,r3f"}
    common = read_compare(None, flags, {}).grid.common
    assert common == {
        "learning_rate": [3e-5, 1e-4, 3e-4],
        "weight_decay": [0.0, 0.1],
        "epochs": [1, 3],
    }
    fixed = read_compare(None, {**flags, "learning_rate": 1e-5}, {}).grid.common
    assert fixed == {"weight_decay": [0.0, 0.1], "epochs": [1, 3]}


def test_a_file_without_the_columns_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", [{"question": "one", "reply": "two"}])
    asked = Asked({"task": "language", "train": str(path)})
    with pytest.raises(DataError, match="must have a column messages"):
        asked.inspect()
    Asked({**asked.settings, "prompt_column": "question", "completion_column": "reply"}).inspect()
