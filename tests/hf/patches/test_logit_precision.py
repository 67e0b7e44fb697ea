"""Logits of passes in mixed precision: as they were computed, for compiled losses alone, and the
model is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.patches.logit_precision import NarrowLogits, as_computed
from advreg.hf.view.view import HFModelView
from advreg.methods import create
from observe import batch_of, gradients, smoothed_view, step
from tiny_models import tiny

FAMILIES = ("marian", "bart", "t5", "gpt2-lm", "bert")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """One for bf16 on a CPU, which leaves the others of the process alone."""
    AcceleratorState._reset_state()
    yield Accelerator(mixed_precision="bf16", cpu=True)
    AcceleratorState._reset_state()


def prepared(accelerator: Accelerator, family: str, is_compiled: bool = True) -> Any:
    torch.manual_seed(0)
    model = tiny(family, dropout=0.0).train()
    if is_compiled:
        compile_layers(model, backend="eager")
    return accelerator.prepare_model(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_losses_get_the_logits_that_the_model_computed(
    accelerator: Accelerator, family: str
) -> None:
    model, batch = prepared(accelerator, family), batch_of(family)
    wide = HFModelView(prepared(accelerator, family, is_compiled=False)).logits(batch)
    narrow = HFModelView(model).logits(batch)
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(narrow.float(), wide)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_a_step_is_the_same(accelerator: Accelerator, family: str) -> None:
    found = []
    for is_compiled in (True, False):
        model = prepared(accelerator, family, is_compiled)
        step(create("standard"), smoothed_view(model, 0.1), batch_of(family))
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was_after_a_pass(accelerator: Accelerator, fails: bool) -> None:
    model = prepared(accelerator, "marian")
    forward, bias = model.forward, model.final_logits_bias
    with suppress(KeyboardInterrupt), NarrowLogits(model, model).passing():
        assert (model.forward is forward, model.final_logits_bias is bias) == (False, False)
        if fails:
            raise KeyboardInterrupt
    assert model.forward is forward
    assert model.final_logits_bias is bias
    assert model(**translation_inputs()).logits.dtype == torch.float32


def translation_inputs() -> dict[str, Tensor]:
    batch = batch_of("marian")
    return {name: batch[name] for name in ("input_ids", "attention_mask")} | {
        "decoder_input_ids": batch["input_ids"]
    }


def test_a_bias_that_is_not_zero_is_added(accelerator: Accelerator) -> None:
    model, batch = prepared(accelerator, "marian"), batch_of("marian")
    plain = HFModelView(model).logits(batch)
    model.final_logits_bias[0, 3] = 2.0
    moved = HFModelView(model).logits(batch) - plain
    assert moved.dtype == torch.float32
    assert torch.equal(moved[..., 3], torch.full_like(moved[..., 3], 2.0))
    assert not moved[..., :3].any()


def test_a_bias_that_is_loaded_before_the_first_pass_counts(accelerator: Accelerator) -> None:
    model, batch = prepared(accelerator, "marian"), batch_of("marian")
    task, plain = HFModelView(model), HFModelView(model).logits(batch)
    model.final_logits_bias[0, 3] = 2.0  # as a checkpoint that is resumed might
    assert not torch.equal(task.logits(batch), plain)


def test_the_averaged_model_predicts_in_the_same_precision(accelerator: Accelerator) -> None:
    task, batch = HFModelView(prepared(accelerator, "marian")), batch_of("marian")
    averaged = task.averaged(
        batch, {name: value.detach() for name, value in task.parameters().items()}
    )
    assert averaged.dtype == torch.bfloat16
    assert torch.equal(averaged, task.logits(batch))


def test_a_user_s_loss_gets_widened_logits(accelerator: Accelerator) -> None:
    seen = []

    def loss(model: Any, inputs: Any, batch: Any, copies: int) -> Tensor:
        logits = model(**inputs).logits
        seen.append(logits.dtype)
        return logits.sum()

    task, batch = (
        HFModelView(prepared(accelerator, "marian"), compute_loss=loss, means=False),
        batch_of("marian"),
    )
    task.loss(task.logits(batch), batch)
    assert seen == [torch.float32]


def test_a_forward_that_widens_nothing_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    assert as_computed(model, None) is None
    assert as_computed(model, model.forward) is None
    with NarrowLogits(model, model).passing():
        assert "forward" not in vars(model)
