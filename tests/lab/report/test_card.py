from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advreg.lab.report.card import card, is_untouched, write_card
from report_runs import made_up

RECORD = made_up("arch", 3, metrics={"loss": 0.41, "f1": 0.75, "accuracy": 0.8}, model="org/bert")


def parsed(text: str) -> Any:
    return ModelCard(text, ignore_metadata_errors=False)


def test_the_hub_reads_method_scores_and_origin() -> None:
    found = parsed(card(RECORD, ["accuracy", "f1"], "Zuo et al. 2021", "org/bert"))
    assert found.data.library_name == "transformers"
    assert found.data.pipeline_tag == "text-classification"
    assert found.data.base_model == "org/bert"
    assert found.data.tags == ["advreg", "adversarial-regularisation", "arch"]
    assert found.data.metrics == ["accuracy", "f1"]
    scores = [
        (result.metric_type, result.metric_value, result.dataset_name)
        for result in found.data.eval_results
    ]
    assert scores == [
        ("accuracy", 0.8, "reviews"),
        ("f1", 0.75, "reviews"),
        ("loss", 0.41, "reviews"),
    ]
    assert found.data.eval_results[0].task_type == "text-classification"


def test_people_read_settings_scores_and_cost() -> None:
    text = card(RECORD, ["accuracy"], "Zuo et al. 2021")
    for wanted in (
        "# bert on reviews, trained with ARCH",
        "with ARCH (Zuo et al. 2021) on reviews: 40 train, 8 dev samples. One run, with seed 3",
        "| accuracy | 80.0 |",
        "| radius | 0.3 |",
        "| learning_rate | 0.001 |",
        "| passes per step: forward, backward | 2.00, 1.00 |",
        "| cache of perturbations | 4.1 kB |",
        "commit c0ffeec0ff",
    ):
        assert wanted in text
    assert "base_model" not in text


def test_no_path_of_the_machine_is_on_a_card() -> None:
    record = made_up(
        model="/home/somebody/models/bert", settings={"cache_folder": "/scratch/somebody/cache"}
    )
    text = card(record, ["accuracy"])
    assert "somebody" not in text
    assert "# bert on reviews" in text


def test_a_translator_is_one() -> None:
    record = made_up(task="multi30k", metrics={"bleu": 31.0}, details={"languages": ["en", "de"]})
    found = parsed(card(record, ["bleu"]))
    assert found.data.pipeline_tag == "translation"
    assert "AutoModelForSeq2SeqLM" in found.content
    assert (
        "tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)"
        in found.content
    )


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
@example("\x7f \x85 \u2028 \ufeff ---\n--- : [ | \U0001f600 '\"")
def test_no_name_breaks_the_card(name: str) -> None:
    record = made_up(task=name, model=name, metrics={"accuracy": 0.5})
    found = parsed(card(record, ["accuracy"], base_model=name))
    assert found.data.base_model == name
    assert found.data.eval_results[0].dataset_name == record.portable().task.name


def test_a_card_is_renewed_until_somebody_edits_it(tmp_path: Path) -> None:
    first, second = card(RECORD, ["accuracy"]), card(RECORD, ["f1"])
    assert write_card(tmp_path, first)
    assert write_card(tmp_path, second)
    path = tmp_path / "README.md"
    assert path.read_text(encoding="utf-8") == second
    edited = second.replace("## Use", "## How to use it")
    path.write_text(edited, encoding="utf-8")
    assert not write_card(tmp_path, first)
    assert path.read_text(encoding="utf-8") == edited


@pytest.mark.parametrize(
    "change", [lambda text: text + "mine\n", lambda text: "mine\n" + text, lambda _: "# My model\n"]
)
def test_any_change_makes_a_card_somebodys_own(change: Any) -> None:
    text = card(RECORD, ["accuracy"])
    assert is_untouched(text)
    assert not is_untouched(change(text))
