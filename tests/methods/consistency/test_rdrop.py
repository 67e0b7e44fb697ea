import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

import naive
from advreg.core.schedule import Clock
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.methods import Step, create, registry
from observe import (
    Padded,
    batch_of,
    close,
    dropping,
    exact,
    features_of,
    gradients,
    known_dropout,
    step,
    watched,
)
from tiny_models import tiny, tiny_batch

VARIANTS: dict[str, dict[str, Any]] = {
    "fused": {},
    "two passes": {"fuse": False},
    "one loss": {"both_losses": False},
    "one loss, two passes": {"both_losses": False, "fuse": False},
}


def agree(
    patch: pytest.MonkeyPatch,
    family: str,
    variant: dict[str, Any],
    labels: torch.Tensor | None = None,
    **model: Any,
) -> None:
    copies = known_dropout(patch)
    mine, reference = dropping(family, **model), dropping(family, **model)
    batch = batch_of(family) | ({} if labels is None else {"labels": labels})
    report = step(create("rdrop", weight=3.0, **variant), HFModelView(mine), batch)
    expected = naive.rdrop(reference, batch, 3.0, variant.get("both_losses", True), copies.of)
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
    assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
    assert expected.penalty > 1e-3
    assert close(gradients(mine), gradients(reference))


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rdrop_agrees_with_its_reference(
    family: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(monkeypatch, family, VARIANTS[variant])


def test_rdrop_holds_the_two_values_of_a_regression_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agree(
        monkeypatch,
        "bert",
        {},
        torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64),
        num_labels=1,
    )


def test_rdrop_holds_several_labels_together_each_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=torch.float64)
    agree(monkeypatch, "bert", {}, labels, problem_type="multi_label_classification")


def test_both_copies_learn_of_a_causal_language_model() -> None:
    torch.manual_seed(0)
    model = tiny("gpt2-lm")
    report = create("rdrop").step(HFModelView(model), tiny_batch("gpt2-lm"), Step(Clock(0, 0)))
    assert float(report.penalty) > 1e-3


@pytest.mark.parametrize(("fuse", "rows"), [(True, [8]), (False, [4, 4])])
def test_nothing_is_added_to_the_embeddings(fuse: bool, rows: list[int]) -> None:
    model = tiny("bert")
    with watched(model) as passes:
        step(create("rdrop", fuse=fuse), HFModelView(model), batch_of("bert"))
    assert [one.rows for one in passes] == rows
    assert not any(one.perturbed for one in passes)


@pytest.mark.parametrize("family", ["bert", "llama", "marian"])
def test_a_model_that_drops_nothing_is_refused_with_the_remedy(family: str) -> None:
    task = HFModelView(exact(family))
    method = create("rdrop")
    message = (
        r"rdrop needs a model with dropout, got one that drops nothing.*Set a dropout above 0 in the model's config "
        r"\(Llama-like models have attention_dropout\), or use simcut or r3f"
    )
    with pytest.raises(ValueError, match=message):
        step(method, task, batch_of(family))


def test_a_model_in_evaluation_mode_is_refused_too() -> None:
    with pytest.raises(ValueError, match="rdrop needs a model with dropout"):
        step(create("rdrop"), HFModelView(tiny("bert").eval()), batch_of("bert"))


def test_a_llama_with_dropout_in_its_attention_is_trained() -> None:
    report = step(
        create("rdrop"), HFModelView(tiny("llama", attention_dropout=0.2)), batch_of("llama")
    )
    assert float(report.penalty) > 0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("weight", -1.0, "weight must be a finite number of 0 or more, got -1"),
        ("weight", math.inf, "weight must be a finite number of 0 or more, got inf"),
        ("start_at", 1.0, "start_at must be at least 0 and below 1, got 1"),
        ("ramp", "cosine", "ramp must be one of constant, linear, got 'cosine'"),
    ],
)
def test_rdrop_refuses_bad_values(option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry["rdrop"](**{option: value})


def test_a_trainer_takes_a_model_that_is_still_in_evaluation_mode_and_refuses_one_without_dropout(
    tmp_path: Path,
) -> None:
    """``from_pretrained`` leaves a model in evaluation mode; the first step sets it to training."""

    def train(model: Any) -> AdversarialTrainer:
        trainer = AdversarialTrainer(
            model=model,
            args=TrainingArguments(
                str(tmp_path), max_steps=1, save_strategy="no", report_to="none", use_cpu=True
            ),
            train_dataset=features_of(batch_of("bert")),
            data_collator=Padded(0),
            method=create("rdrop"),
        )
        trainer.train()
        return trainer

    assert train(tiny("bert", dropout=0.2).eval()).state.global_step == 1
    with pytest.raises(
        ValueError, match=r"model drops nothing.* set a dropout above 0 .* or choose"
    ):
        train(exact("bert"))
