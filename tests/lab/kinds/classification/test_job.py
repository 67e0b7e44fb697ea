"""One run from samples to scores, and on from where it stopped."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from advreg.lab.kinds.classification.encode import encode, padding_collator
from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.models import load_classifier
from advreg.lab.kinds.training import Result, train
from advreg.lab.kinds.wordpieces import train_tokenizer
from advreg.methods import create
from advreg.methods.base import memory_bytes
from tiny_models import tiny

TRAIN = [
    ("good cat", 1),
    ("bad cat", 0),
    ("good dog here", 1),
    ("bad dog", 0),
    ("a good one", 1),
    ("a bad one", 0),
]
DEV = [("good bird", 1), ("bad bird here", 0), ("one good cat", 1)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([text for text, _ in TRAIN + DEV], max_length=16)


def accuracy(predictions: Any, labels: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(predictions, -1) == labels).mean())}


def job(folder: Path, tokenizer: Any, method: str = "arch", **fields: Any) -> ClassificationJob:
    options: dict[str, Any] = {
        "arch": {"cache_fraction": 0.5, "refresh_every": 2, "ascent_steps": 1}
    }.get(method, {})
    samples = [
        encode(
            tokenizer, [text for text, _ in data], None, [label for _, label in data], 16
        ).samples
        for data in (TRAIN, DEV)
    ]
    settings = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return ClassificationJob(
        model=tiny("bert", vocab_size=len(tokenizer), num_labels=2),
        tokenizer=tokenizer,
        collator=padding_collator(tokenizer),
        train=samples[0],
        dev=samples[1],
        metrics=accuracy,
        method=create(method, **options),
        folder=folder,
        fields=settings | fields,
    )


def test_a_run_returns_scores_history_and_passes_and_saves_its_model(
    tmp_path: Path, tokenizer: Any
) -> None:
    steps: list[tuple[int, int, dict[str, float]]] = []

    def watch(step: int, of: int, logs: Mapping[str, float]) -> None:
        steps.append((step, of, dict(logs)))

    one = job(tmp_path, tokenizer)
    result = train(one, watch)
    assert set(result.metrics) == {"loss", "accuracy"}
    assert result.steps == 6
    assert result.passes == {"forward": 2.5, "backward": 1.5}  # an ascent step in one of two epochs
    assert result.seconds_per_step > 0
    assert result.memory_bytes == memory_bytes(one.method) > 0
    assert result.resumed_from is None
    assert [line["step"] for line in result.history if "penalty" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["epoch"] for line in result.history if "eval_accuracy" in line] == [1, 2, 2]
    assert [(step, of) for step, of, _ in steps] == [(step, 6) for step in range(1, 7)]
    logged = {line["step"]: line["penalty"] for line in result.history if "penalty" in line}
    assert [logs["penalty"] for _, _, logs in steps[1:]] == [
        logged[step] for step in range(1, 6)
    ]  # the last log so far
    read = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    batch = one.collator([dict(sample) for sample in one.dev])
    with torch.no_grad():
        output = read(**batch)
    assert result.metrics["loss"] == pytest.approx(float(output.loss), rel=1e-5)
    assert result.metrics["accuracy"] == pytest.approx(
        float((output.logits.argmax(-1) == batch["labels"]).float().mean())
    )
    assert (tmp_path / "model" / "tokenizer.json").is_file()


def test_further_sets_are_evaluated_when_the_training_is_done_under_their_names(
    tmp_path: Path, tokenizer: Any
) -> None:
    plain = train(job(tmp_path / "plain", tokenizer))
    one = job(tmp_path / "further", tokenizer)
    further = dataclasses.replace(one, evaluations={"mm": one.train, "r1_dev": one.dev[:2]})
    result = train(further)
    assert {name: result.metrics[name] for name in plain.metrics} == plain.metrics
    assert set(result.metrics) == {
        f"{prefix}{name}" for prefix in ("", "mm_", "r1_dev_") for name in plain.metrics
    }
    read = AutoModelForSequenceClassification.from_pretrained(tmp_path / "further" / "model").eval()
    for name, samples in further.evaluations.items():
        batch = one.collator([dict(sample) for sample in samples])
        with torch.no_grad():
            output = read(**batch)
        right = (output.logits.argmax(-1) == batch["labels"]).float().mean()
        assert result.metrics[f"{name}_accuracy"] == pytest.approx(float(right))
        assert result.metrics[f"{name}_loss"] == pytest.approx(float(output.loss), rel=1e-5)


@pytest.mark.parametrize("method", ["standard", "r3f", "arch", "smart", "freelb", "freeat"])
@pytest.mark.parametrize("every", [1, 2])
def test_losses_and_the_norm_of_the_gradient_are_logged_at_every_logging_step(
    method: str, every: int, tmp_path: Path, tokenizer: Any
) -> None:
    result = train(job(tmp_path, tokenizer, method, logging_steps=every, save_strategy="no"))
    logs = {line["step"]: line for line in result.history if "loss" in line}
    assert list(logs) == list(range(every, 7, every))
    penalised = method in ("r3f", "arch", "smart")
    for line in logs.values():
        assert ("penalty" in line) == penalised
        assert ("task_loss" in line) == (method != "standard")
        assert all(np.isfinite(line[name]) for name in ("loss", "grad_norm"))
        if penalised:
            weight = job(tmp_path, tokenizer, method).method.options()["weight"]
            assert line["loss"] == pytest.approx(
                line["task_loss"] + weight * line["penalty"], abs=1e-4
            )


def scores(result: Result) -> list[Any]:
    timings = (
        "runtime",
        "per_second",
        "total_flos",
        "train_loss",
    )  # the last is of the steps since resuming
    lines = [
        {k: v for k, v in line.items() if not any(t in k for t in timings)}
        for line in result.history
    ]
    return [result.metrics, result.steps, result.passes, lines]


@pytest.mark.parametrize("method", ["arch", "standard"])
def test_a_run_that_resumes_ends_as_if_it_had_never_stopped(
    method: str, tmp_path: Path, tokenizer: Any
) -> None:
    """From the last whole checkpoint: the newest was cut off in mid-save."""
    straight = train(job(tmp_path / "straight", tokenizer, method))
    train(job(tmp_path / "cut", tokenizer, method))
    (tmp_path / "cut" / "checkpoint-6" / "trainer_state.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "model")
    resumed = train(job(tmp_path / "cut", tokenizer, method), resume=True)
    assert resumed.resumed_from == 4
    assert scores(resumed) == scores(straight)
    mine, theirs = (
        AutoModelForSequenceClassification.from_pretrained(tmp_path / run / "model").state_dict()
        for run in ("cut", "straight")
    )
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_what_a_kill_left_while_the_model_was_saved_is_gone(tmp_path: Path, tokenizer: Any) -> None:
    half = tmp_path / "model" / ".tmpkA0Jwf"  # as safetensors calls what it has not renamed yet
    half.parent.mkdir()
    half.touch()
    train(job(tmp_path, tokenizer, "standard"))
    assert not half.exists()
    assert (half.parent / "model.safetensors").is_file()


def test_resuming_where_there_is_nothing_starts_anew(tmp_path: Path, tokenizer: Any) -> None:
    result = train(job(tmp_path, tokenizer, "standard", save_strategy="no"), resume=True)
    assert result.resumed_from is None
    assert result.steps == 6


def test_attention_takes_batches_of_any_shape_without_a_plan_for_each(
    tmp_path: Path, tokenizer: Any
) -> None:
    planned: list[bool] = []
    train(
        job(tmp_path, tokenizer), lambda *_: planned.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    assert set(planned) == {False}


def test_a_regression_is_trained_too(tmp_path: Path, tokenizer: Any) -> None:
    one = job(tmp_path, tokenizer, "r3f", save_strategy="no", num_train_epochs=1)
    rows = [{**sample, "labels": float(sample["labels"])} for sample in one.train]
    model = load_classifier("small", tokenizer, None, 0)

    def mean(predictions: Any, labels: Any) -> dict[str, float]:
        return {"error": float(np.square(predictions[:, 0] - labels).mean())}

    regression = ClassificationJob(
        **{**vars(one), "model": model, "train": rows, "dev": rows, "metrics": mean}
    )
    result = train(regression)
    assert result.metrics["error"] == pytest.approx(result.metrics["loss"], rel=1e-5)


def test_a_field_that_does_not_exist_is_refused_before_anything_is_made(
    tmp_path: Path, tokenizer: Any
) -> None:
    with pytest.raises(ValueError, match="no field 'epochs'"):
        train(job(tmp_path / "run", tokenizer, epochs=3))
    assert not (tmp_path / "run").exists()
