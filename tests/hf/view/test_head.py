"""Which losses are known to be plain means, and what they are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from advreg.hf.view.head import Head
from advreg.hf.view.view import HFModelView
from observe import quiet
from tiny_models import FAMILIES, tiny, tiny_batch


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_a_known_head_is_the_one_its_forward_pass_computes(family: str) -> None:
    model, batch = tiny(family, dropout=0.0), tiny_batch(family)
    head = Head(model)
    assert head.computes(batch["labels"])
    output = model(**batch)
    torch.testing.assert_close(
        head.loss(output.logits, batch["labels"]), output.loss, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("family", ["gpt2-lm", "llama-lm", "modernbert", "bert", "marian"])
def test_a_model_that_ignores_a_number_of_items_is_known(family: str) -> None:
    model, batch = tiny(family, dropout=0.0).eval(), tiny_batch(family)
    accepted = {} if family == "marian" else {"num_items_in_batch": torch.tensor(1000)}
    ignores = torch.isclose(model(**batch).loss, model(**batch, **accepted).loss)
    assert Head(model).ignores_items == bool(ignores)


class Weighted(transformers.BertForSequenceClassification):  # type: ignore[misc]
    """A head whose forward pass weighs the classes."""

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        if labels is not None:
            output["loss"] = nn.functional.cross_entropy(
                output.logits, labels, torch.tensor([1.0, 5.0, 1.0])
            )
        return output


def unknown(change: str) -> Any:
    model = tiny("bert")
    if change == "class":
        return Weighted(model.config)
    if change == "loss function":
        model = tiny("llama-lm")
        model.loss_function = lambda **given: torch.zeros(())
    if change == "forward of the instance":
        plain = model.forward
        model.forward = lambda **inputs: plain(**inputs)
    if change == "router":
        model.config.output_router_logits = True
    return model


@pytest.mark.parametrize("change", ["class", "loss function", "forward of the instance", "router"])
def test_a_loss_that_somebody_changed_is_not_known(change: str) -> None:
    assert not Head(unknown(change)).computes(torch.tensor([0, 1]))


def test_labels_that_are_shifted_already_are_left_to_the_model() -> None:
    """The decoders of BART and its kin expect them so, though they generate."""
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, decoder_layers=1, decoder_attention_heads=2
    )
    assert not Head(transformers.BartForCausalLM(config)).computes(
        torch.ones(2, 3, dtype=torch.int64)
    )


def test_soft_labels_of_deberta_are_left_to_the_model() -> None:
    head = Head(tiny("deberta-v2"))
    assert head.computes(torch.tensor([0, 1]))
    assert not head.computes(torch.rand(2, 3))


def test_virtual_tokens_have_no_labels() -> None:
    """The last of them predicts the first token."""
    head = Head(tiny("gpt2-lm"))
    labels = torch.tensor([[5, 6, 7]])
    logits = torch.randn(1, 5, 50)  # two virtual tokens first
    expected = nn.functional.cross_entropy(logits[0, 1:4], labels[0])
    assert float(head.loss(logits, labels)) == pytest.approx(float(expected.detach()), rel=1e-5)
    before = head.loss(logits, labels, items=4)
    assert float(before) == pytest.approx(float(expected) * 3 / 4, rel=1e-5)


def test_cross_entropy_of_half_precision_logits_is_taken_in_single() -> None:
    task, batch = HFModelView(quiet("bert")), tiny_batch("bert")
    logits = (8 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))).half()
    expected = F.cross_entropy(logits.double(), batch["labels"])
    assert float(task.prediction_head.loss(logits, batch["labels"])) == pytest.approx(
        float(expected), rel=1e-6
    )
