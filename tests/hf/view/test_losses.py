"""Task losses and divergences, against the model's own and naive ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.trainer_pt_utils import LabelSmoother

from advreg.hf.view.view import HFModelView
from observe import Batch, noise_of, quiet, smoothed_view
from tiny_models import CAUSAL_LMS, FAMILIES, tiny_batch


def head(name: str, family: str = "bert", **settings: Any) -> Any:
    """Another head of a family, with its tiny configuration."""
    config = quiet(family, num_labels=3, **settings).config
    torch.manual_seed(0)
    return getattr(transformers, name)(config)


def word_labels(batch: Batch) -> Batch:
    """A class for each word, and none for the padding and the first word."""
    labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, 0] = -100
    return {**batch, "labels": labels}


def with_labels(labels: Tensor) -> Callable[[Batch], Batch]:
    return lambda batch: {**batch, "labels": labels}


SCORES = torch.tensor([0.5, -100.0, 3.0, -1.5])  # −100 is a score like any other


HEADS: dict[str, tuple[Callable[[], Any], Callable[[Batch], Batch]]] = {
    **{family: ((lambda family=family: quiet(family)), dict) for family in FAMILIES},
    "regression": (lambda: quiet("bert", num_labels=1), with_labels(SCORES)),
    "regression, (B, 1)": (lambda: quiet("bert", num_labels=1), with_labels(SCORES[:, None])),
    "regression by name": (
        lambda: quiet("roberta", num_labels=1, problem_type="regression"),
        with_labels(SCORES),
    ),
    "two scores": (
        lambda: quiet("bert", num_labels=2, problem_type="regression"),
        with_labels(torch.randn(4, 2)),
    ),
    "several labels": (
        lambda: quiet("bert"),
        with_labels(torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])),
    ),
    "several labels by name": (
        lambda: quiet("bert", problem_type="multi_label_classification"),
        with_labels(torch.eye(3)[[0, 1, 2, 0]]),
    ),
    "words": (lambda: head("BertForTokenClassification"), word_labels),
    "words, causal": (lambda: head("GPT2ForTokenClassification", "gpt2"), word_labels),
    "masked words": (lambda: head("BertForMaskedLM"), word_labels),
    "one label is ignored": (lambda: quiet("bert"), with_labels(torch.tensor([0, -100, 2, 1]))),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_loss_is_the_model_s_own(name: str) -> None:
    make, relabel = HEADS[name]
    model = make().eval()  # some heads have a dropout that no setting reaches
    batch = relabel(tiny_batch(name if name in FAMILIES else "bert"))
    if "causal" in name:
        batch["input_ids"] = batch["input_ids"].masked_fill(
            batch["attention_mask"] == 0, model.config.pad_token_id
        )
    task = HFModelView(model)
    ours = task.loss(task.logits(batch), batch)
    theirs = model(**batch).loss
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    ours.backward()
    mine = {
        n: value.grad.clone() for n, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    theirs.backward()
    for n, value in model.named_parameters():
        assert value.grad is None or torch.allclose(mine[n], value.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm", "t5"])
def test_label_smoothing_is_the_library_s(family: str) -> None:
    model, batch = quiet(family), tiny_batch(family)
    task = smoothed_view(model, 0.2)
    logits = task.logits(batch)
    expected = LabelSmoother(epsilon=0.2)(
        {"logits": logits}, batch["labels"], shift_labels=family == "gpt2-lm"
    )
    assert float(task.loss(logits, batch).detach()) == pytest.approx(
        float(expected.detach()), rel=1e-5
    )
    plain = HFModelView(model).loss_at(batch)
    assert float(plain.detach()) != pytest.approx(float(expected.detach()), rel=1e-3)


@pytest.mark.parametrize("labels", [SCORES, SCORES[:, None]])
def test_predictions_of_one_column_meet_labels_of_none(labels: Tensor) -> None:
    """(B, 1) minus (B,) would be (B, B)."""
    task, batch = HFModelView(quiet("bert", num_labels=1)), {**tiny_batch("bert"), "labels": labels}
    clean, moved = torch.randn(4, 1), torch.randn(4, 1)
    expected = sum((float(clean[row, 0]) - float(SCORES[row])) ** 2 for row in range(4)) / 4
    assert float(task.prediction_head.loss(clean, labels)) == pytest.approx(expected, rel=1e-5)
    expected = sum((float(clean[row, 0]) - float(moved[row, 0])) ** 2 for row in range(4))
    assert float(task.divergence(clean, moved, batch, "kl")) == pytest.approx(expected, rel=1e-5)


def kl_of(clean: Tensor, perturbed: Tensor) -> float:
    p, q = clean.detach().double().softmax(-1), perturbed.detach().double().softmax(-1)
    return float((p * (p / q).log()).sum())


@pytest.mark.parametrize("family", ["bert", "marian", "t5", "gpt2-lm", "llama-lm"])
def test_the_divergence_counts_the_items_of_the_loss_one_by_one(family: str) -> None:
    """Target tokens that have a label, or samples; the sum over them, and their number beside
    it.
    """
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    clean, perturbed = task.paired_logits(batch, noise_of(task, batch))
    total, items = 0.0, 0
    for row in range(4):
        if family == "bert":
            total, items = total + kl_of(clean[row], perturbed[row]), items + 1
            continue
        ahead = 1 if family in CAUSAL_LMS else 0
        for at in range(batch["labels"].shape[1] - ahead):
            if batch["labels"][row, at + ahead] != -100:
                total, items = total + kl_of(clean[row, at], perturbed[row, at]), items + 1
    assert float(task.divergence(clean, perturbed, batch, "kl").detach()) == pytest.approx(
        total, rel=1e-4
    )
    assert int(task.items(batch)) == items
    assert total > 1e-5


def test_the_divergence_of_several_labels_is_that_of_coins() -> None:
    task = HFModelView(quiet("bert"))
    batch = {**tiny_batch("bert"), "labels": torch.ones(4, 3)}
    clean, moved = torch.randn(4, 3), torch.randn(4, 3)
    p, q = clean.double().sigmoid(), moved.double().sigmoid()
    expected = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()
    assert float(task.divergence(clean, moved, batch, "kl")) == pytest.approx(
        float(expected), rel=1e-5
    )
    assert int(task.items(batch)) == 12


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm"])
def test_a_number_of_items_that_is_given_is_the_denominator(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    own = int(task.items(batch))
    for given in (100, torch.tensor(100), 12.5):
        wider = {**batch, "num_items_in_batch": given}
        assert float(task.items(wider)) == float(given)
        total = float(task.loss_at(batch).detach()) * own
        assert float(task.loss_at(wider).detach()) * float(given) == pytest.approx(total, rel=1e-5)


def test_a_batch_without_a_single_label_has_no_loss_and_no_division_by_zero() -> None:
    task, batch = HFModelView(quiet("marian")), tiny_batch("marian")
    batch["labels"] = torch.full_like(batch["labels"], -100)
    assert float(task.loss_at(batch).detach()) == 0
