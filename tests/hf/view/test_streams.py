"""Tokens, masks and embeddings of each stream."""

from typing import Any

import pytest
import torch
import transformers

from advreg.hf.view.inputs import decoder_inputs
from advreg.hf.view.view import HFModelView
from observe import quiet
from tiny_models import ENCODER_DECODERS, FAMILIES, tiny, tiny_batch

every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_decoder_position_is_real_where_it_has_a_label(family: str) -> None:
    """Marian's and T5's start token is their padding token, and a real token all the same."""
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    expected = batch["labels"] != -100
    assert torch.equal(task.masks(batch)["decoder"], expected)
    assert torch.equal(task.masks(batch)["encoder"], batch["attention_mask"] == 1)
    prepared = {**batch, "decoder_input_ids": decoder_inputs(task.model, batch["labels"])}
    assert torch.equal(task.masks(prepared)["decoder"], expected)
    without = {name: value for name, value in prepared.items() if name != "labels"}
    shifted = task.masks(without)[
        "decoder"
    ]  # told from the ids alone: the last label is never read
    assert bool(shifted[:, 0].all())
    assert torch.equal(shifted[:, 1:], expected[:, :-1])
    given = {**prepared, "decoder_attention_mask": torch.ones_like(batch["labels"])}
    assert bool(task.masks(given)["decoder"].all())


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_without_a_mask_padding_is_known_by_its_token(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    mask = batch.pop("attention_mask")
    stream = "encoder" if family == "t5" else "tokens"
    assert torch.equal(task.masks(batch)[stream], mask == 1)


def test_a_classifier_with_a_decoder_reads_the_text_twice() -> None:
    torch.manual_seed(0)
    config = quiet("bart", num_labels=3).config
    model = transformers.BartForSequenceClassification(config).eval()
    batch = tiny_batch("bart", lengths=[6, 4])
    batch["labels"] = torch.tensor([0, 2])
    for row, length in enumerate((6, 4)):
        batch["input_ids"][row, length - 1] = model.config.eos_token_id
    task = HFModelView(model)
    assert torch.equal(task.logits(batch), model(**batch).logits)
    assert task.masks(batch)["decoder"].sum(1).tolist() == [6, 4]


@every_family
def test_nothing_is_perturbed_by_zeros_of_the_embeddings_shape(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    zeros, seen = task.zeros(batch), task.streams.embeddings(batch)
    assert set(zeros.values) == set(seen)
    for stream, value in zeros.values.items():
        assert value.shape == seen[stream].shape
        assert not bool(value.any())


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_perturbations_are_at_least_single_precision(dtype: torch.dtype, wide: torch.dtype) -> None:
    task = HFModelView(quiet("bert", dtype=dtype))
    assert task.zeros(tiny_batch("bert")).values["tokens"].dtype == wide


@every_family
def test_reading_embeddings_leaves_no_trace(family: str) -> None:
    model, batch = tiny(family), tiny_batch(family)
    model.base_model.eval()
    task = HFModelView(model)

    def state() -> list[Any]:
        flags = [module.training for module in model.modules()]
        hooks = [len(module._forward_hooks) for module in model.modules()]
        return [
            torch.get_rng_state().tolist(),
            flags,
            hooks,
            [value.grad for value in model.parameters()],
        ]

    before = state()
    seen = task.streams.embeddings(batch)
    assert state() == before
    assert all(value.dim() == 3 and not value.requires_grad for value in seen.values())


def test_reading_embeddings_gives_back_the_random_numbers_that_a_model_draws() -> None:
    model, batch = quiet("bert"), tiny_batch("bert")
    model.classifier.register_forward_hook(
        lambda module, inputs, output: output + torch.rand_like(output)
    )
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    HFModelView(model).streams.embeddings(batch)
    assert torch.equal(torch.rand(()), expected)
