from typing import Any

import pytest
import torch
from torch import nn

from advreg.hf.view.dropout import has_dropout
from advreg.hf.view.view import HFModelView
from tiny_models import FAMILIES, lora_targets, tiny, tiny_batch


def differs(model: Any, family: str) -> bool:
    """Do two passes over a batch give different predictions?"""
    torch.manual_seed(0)
    with torch.no_grad():
        first, second = HFModelView(model).paired_logits(tiny_batch(family), None)
    return not torch.equal(first, second)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dropout", [None, 0.0, 0.3])
def test_a_model_has_dropout_exactly_where_two_copies_of_a_batch_differ(
    family: str, dropout: float | None
) -> None:
    model = tiny(family, dropout=dropout)
    assert has_dropout(model) == differs(model, family)
    model.eval()
    assert not has_dropout(model)


def test_a_llama_has_dropout_in_its_attention_alone() -> None:
    assert not has_dropout(tiny("llama"))
    model = tiny("llama", attention_dropout=0.3)
    assert has_dropout(model)
    assert differs(model, "llama")


def test_one_part_in_training_mode_is_enough_and_a_frozen_part_does_not_count() -> None:
    model: Any = tiny("bert", dropout=0.0)
    model.dropout = nn.Dropout(0.2)
    assert has_dropout(model)
    model.dropout.eval()
    assert not has_dropout(model)


def test_dropped_layers_are_no_dropout_since_a_fused_pass_drops_them_of_both_copies() -> None:
    model = tiny("bart", dropout=0.0, encoder_layerdrop=0.5, decoder_layerdrop=0.5)
    assert not has_dropout(model)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_dropout_of_lora_counts(probability: float) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS",
        target_modules=lora_targets("llama"),
        lora_dropout=probability,
        init_lora_weights=False,
    )
    model = peft.get_peft_model(tiny("llama"), settings).train()
    assert has_dropout(model) == differs(model, "llama") == (probability > 0)


def test_dropout_modes() -> None:
    model, batch = tiny("bert", dropout=0.3), tiny_batch("bert")
    task = HFModelView(model)
    with task.dropout("fresh"):
        assert not torch.equal(task.bare_logits(batch), task.bare_logits(batch))
    with task.dropout("shared"):
        first, second, third = (
            task.bare_logits(batch),
            task.logits(batch),
            task.averaged(batch, task.parameters()),
        )
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    with task.dropout("off"):
        off = task.bare_logits(batch)
        assert torch.equal(off, task.bare_logits(batch))
    assert model.training
    assert torch.equal(off, model.eval()(**batch).logits)
    assert not torch.equal(first, off)
    model.train()
    assert not torch.equal(
        task.bare_logits(batch), task.bare_logits(batch)
    )  # nothing of "shared" or "off" is left


def test_shared_masks_are_new_ones_at_the_next_step() -> None:
    task, batch = HFModelView(tiny("bert", dropout=0.3)), tiny_batch("bert")
    found = []
    for _ in range(2):
        with task.dropout("shared"):
            found.append(task.bare_logits(batch))
    assert not torch.equal(*found)


def test_an_error_inside_leaves_no_dropout_mode_behind() -> None:
    task, batch = HFModelView(tiny("bert", dropout=0.3)), tiny_batch("bert")
    for mode in ("shared", "off"):
        with pytest.raises(ZeroDivisionError), task.dropout(mode):
            raise ZeroDivisionError
        assert task.model.training
        assert not torch.equal(task.bare_logits(batch), task.bare_logits(batch))


def test_evaluating_gives_mixed_training_flags_back() -> None:
    model = tiny("bart")
    model.get_encoder().eval()
    model.get_encoder().layers[0].train()
    flags = [module.training for module in model.modules()]
    task = HFModelView(model)
    with task.modes.evaluating():
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags
    with pytest.raises(ZeroDivisionError), task.modes.evaluating():
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == flags
