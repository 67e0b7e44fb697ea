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
