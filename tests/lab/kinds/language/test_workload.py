"""Runs on language data, from settings to records, and on from where they stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from advreg.cli.train import comparison
from advreg.lab.kinds.items import Items
from advreg.lab.kinds.language.job import LanguageJob
from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.models import ModelError
from advreg.lab.kinds.registry import KINDS, kind_of
from advreg.lab.runs.run import Plan, run
from advreg.lab.runs.workloads import load_workload
from advreg.records import run as records
from ends import differences
from tiny_language import byte_tokenizer, language_folder, questions, write_lines
from tiny_models import tiny

STEPS = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    language_folder(folder / "tiny")
    rows = questions(30)
    test = [{**row, "references": [row["completion"], "none"]} for row in rows[20:]]
    write_lines(folder / "train.jsonl", rows[:16])
    write_lines(folder / "dev.jsonl", rows[16:20])
    write_lines(folder / "test.jsonl", test)
    return folder


@pytest.fixture
def settings(home: Path) -> LanguageSettings:
    files = {name: str(home / f"{name}.jsonl") for name in ("train", "dev", "test")}
    return LanguageSettings(
        task="language", **files, model=str(home / "tiny"), methods=("standard",), seeds=(3,),
        epochs=3, batch_size=8, learning_rate=1e-2, answer_length=12, answer_pattern="#### (.*)",
        training={"logging_steps": 1},
    )  # fmt: skip


def plan(settings: LanguageSettings, folder: Path) -> Plan:
    return load_workload(settings).plans(settings, folder)[0]


def build(settings: LanguageSettings, folder: Path, said: list[str] | None = None) -> LanguageJob:
    one = plan(settings, folder)
    job = one.source.build(one, (said if said is not None else []).append)
    assert isinstance(job, LanguageJob)
    return job


def carry_out(settings: LanguageSettings, folder: Path, resume: bool = False) -> records.RunRecord:
    return run(plan(settings, folder), None, lambda _: None, resume)


def test_a_run_leaves_scores_items_answers_and_a_model(
    settings: LanguageSettings, tmp_path: Path
) -> None:
    record = carry_out(settings, tmp_path)
    metrics, folder = record.outcome.metrics, tmp_path / "standard-seed3"
    scores = ("loss", "perplexity", "bleu", "exact_match")
    assert set(metrics) == {*scores, *(f"dev_{name}" for name in scores)}
    assert record.outcome.history[0]["loss"] > metrics["loss"] > 0  # type: ignore[operator]
    curve = [line["eval_perplexity"] for line in record.outcome.history if "eval_loss" in line]
    assert len(curve) == settings.epochs
    assert curve[-1] == metrics["dev_perplexity"]
    items = Items.load(folder)
    assert (items.kind, items.main, items.sizes) == ("language", "test", {"dev": 4, "test": 10})
    assert KINDS["language"].rescore(items, list(metrics), {}) == pytest.approx(metrics)
    files = (folder / "test.answers.jsonl", Path(str(settings.test)))
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    assert [line["prompt"] for line in lines[0]] == [line["prompt"] for line in lines[1]]
    trained = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert trained.config.use_cache
    assert record.task.sizes == {"train": 16, "dev": 4, "test": 10}
    assert record.task.details["scored"] == "test"


def test_the_table_shows_perplexity_on_its_own_scale(
    settings: LanguageSettings, tmp_path: Path
) -> None:
    record = carry_out(replace(settings, evaluate_on=2, epochs=1), tmp_path)
    kind = kind_of(record.task)
    assert kind.name == "language"
    assert kind.main_metrics("train", record.outcome.metrics) == ("perplexity",)
    assert kind.table(record).scores(record)[0] == record.outcome.metrics["perplexity"]
    shown = [column.header for column in comparison([record]).columns]
    assert shown[:5] == ["method", "n", "perplexity", "BLEU", "exact"]
    assert record.task.sizes == {"train": 16, "dev": 2, "test": 2}


METHODS: dict[str, dict[str, Any]] = {
    "r3f": {"noise_scale": 0.01},
    "simcut": {},
    "rdrop": {},
    "temporal": {},
    "smart": {},
    "arch": {"refresh_every": 1, "cache_fraction": 0.5},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_regularises_a_language_model(
    method: str, settings: LanguageSettings, tmp_path: Path
) -> None:
    one = replace(
        settings, methods=(method,), options={method: METHODS[method]}, generate=False, epochs=2,
        model_dropout=0.1 if method == "rdrop" else None,
    )  # fmt: skip
    record = carry_out(one, tmp_path)
    assert record.outcome.status == "finished"
    penalties = [line["penalty"] for line in record.outcome.history if "penalty" in line]
    assert max(penalties) > 0


@pytest.mark.parametrize("method", ["temporal", "r3f"])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_run_that_was_stopped_ends_as_if_it_was_not(
    method: str, accumulated: int, settings: LanguageSettings, tmp_path: Path
) -> None:
    training = {"logging_steps": 1, "gradient_accumulation_steps": accumulated}
    one = replace(settings, methods=(method,), batch_size=4, training=training, epochs=2)
    steps, stop = 8 // accumulated, 5 // accumulated
    carry_out(one, tmp_path / "whole")

    def stop_late(step: int, total: int, logs: Mapping[str, float]) -> None:
        if step == steps - 1:
            raise OSError("the disk is gone")

    stopped = plan(replace(one), tmp_path / "stopped")
    with pytest.raises(OSError, match="the disk is gone"):
        run(stopped, stop_late, lambda _: None)
    said: list[str] = []
    run(stopped, None, said.append, resume=True)
    assert f"{stopped.name}: resumed from step {steps // 2}" in said
    assert stop >= steps // 2
    folder = tmp_path / "whole" / stopped.name
    assert differences(folder, stopped.folder, steps) == []
    assert Items.load(folder) == Items.load(stopped.folder)


def test_all_methods_see_the_same_batches_of_similar_length(
    settings: LanguageSettings, tmp_path: Path
) -> None:
    orders = []
    for method in ("standard", "r3f"):
        job = build(replace(settings, methods=(method,)), tmp_path / method)
        torch.manual_seed(len(method))  # the order does not come from the global generator
        orders.append(
            [batch["input_ids"].tolist() for batch in job.trainer().get_train_dataloader()]
        )
    assert orders[0] == orders[1]
    other = build(replace(settings, seeds=(4,)), tmp_path / "other").trainer()
    assert orders[0] != [batch["input_ids"].tolist() for batch in other.get_train_dataloader()]


def test_adapters_alone_are_trained_and_saved(settings: LanguageSettings, tmp_path: Path) -> None:
    one = replace(settings, lora=2, lora_targets=("q_proj", "v_proj"), lora_alpha=8, epochs=2)
    record = carry_out(one, tmp_path / "whole")
    saved = tmp_path / "whole" / "standard-seed3" / "model"
    assert (saved / "adapter_config.json").is_file()
    assert not (saved / "model.safetensors").exists()
    weights = load_file(saved / "adapter_model.safetensors")
    assert {name.split(".")[-2] for name in weights} == {"lora_A", "lora_B"}
    assert all(weight.any() for weight in weights.values())  # lora_B begins at 0
    config = json.loads((saved / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 8)
    assert set(config["target_modules"]) == {"q_proj", "v_proj"}
    base = AutoModelForCausalLM.from_pretrained(settings.model)
    model = PeftModel.from_pretrained(base, str(saved))
    losses = build(one, tmp_path / "again").losses(model, "test")
    assert Items.load(saved.parent).sets["test"]["loss"] == pytest.approx(losses["loss"], abs=1e-3)
    assert (record.training.more["lora"], record.training.more["lora_alpha"]) == (2, 8)


def test_adapters_on_bfloat16_weights_resume_to_the_bit(
    settings: LanguageSettings, tmp_path: Path
) -> None:
    one = replace(
        settings, lora=2, dtype="bfloat16", generate=False, epochs=2, lora_dropout=0.1,
        methods=("r3f",), options={"r3f": {"noise_scale": 0.01}},
    )  # fmt: skip
    carry_out(one, tmp_path / "whole")
    stopped = plan(one, tmp_path / "stopped")

    def stop_late(step: int, total: int, logs: Mapping[str, float]) -> None:
        if step == total - 1:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run(stopped, stop_late, lambda _: None)
    assert run(stopped, None, lambda _: None, resume=True).outcome.status == "finished"
    ends = [tmp_path / name / stopped.name for name in ("whole", "stopped")]
    whole, resumed = (load_file(end / "model" / "adapter_model.safetensors") for end in ends)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
    assert Items.load(ends[0]) == Items.load(ends[1])


def test_long_samples_are_cut_in_training_only(settings: LanguageSettings, tmp_path: Path) -> None:
    said: list[str] = []
    job = build(replace(settings, max_length=30), tmp_path, said)
    assert max(len(row["input_ids"]) for row in job.train) == 30
    assert said[0] == "16 of 16 training samples are longer than 30 tokens and were cut"
    assert min(len(row["input_ids"]) for row in job.sets["test"].encoded.rows) > 30
    assert job.details["cut"] == {"train": 16, "dev": 0, "test": 0}


def test_what_the_model_has_no_positions_for_is_cut_and_said(
    settings: LanguageSettings, tmp_path: Path
) -> None:
    tiny("gpt2-lm", vocab_size=259, n_positions=50).save_pretrained(tmp_path / "short")
    byte_tokenizer().save_pretrained(tmp_path / "short")
    said: list[str] = []
    short = replace(settings, model=str(tmp_path / "short"), epochs=1)
    job = build(short, tmp_path, said)
    count = job.details["cut"]["test"]
    assert count > 0
    assert carry_out(short, tmp_path / "run").outcome.status == "finished"  # generates, too
    assert any(f"{count} rows of test are longer than the model's 48 positions" in s for s in said)


def test_plain_text_is_scored_by_every_token(settings: LanguageSettings, tmp_path: Path) -> None:
    blocks = [f"{row['prompt']} {row['completion']}" for row in questions(12)]
    (tmp_path / "a.txt").write_text("\n\n".join(blocks))
    one = replace(settings, train=str(tmp_path / "a.txt"), dev=None, test=None, epochs=1)
    record = carry_out(one, tmp_path)
    assert set(record.outcome.metrics) == {"loss", "perplexity"}
    tokens = Items.load(tmp_path / "standard-seed3").sets["dev"]["tokens"]
    assert tokens[0] in {len(block) for block in blocks}  # bytes, the end for the first
    assert record.task.details["held_out"]["of"] == 12


def test_a_model_that_is_no_causal_language_model_is_refused(
    settings: LanguageSettings, home: Path, tmp_path: Path
) -> None:
    tiny("bert").save_pretrained(tmp_path / "bert")
    byte_tokenizer().save_pretrained(tmp_path / "bert")
    with pytest.raises(ModelError, match="must be a causal language model, got Bert"):
        build(replace(settings, model=str(tmp_path / "bert")), tmp_path)
    with pytest.raises(ModelError, match=r"lora_targets must name modules of .*, got query"):
        build(replace(settings, lora=2, lora_targets=("query",)), tmp_path)
