"""The pass that a loss function makes: what it gets, and what the model gets."""

from typing import Any

import pytest
import torch
from torch import Tensor

from advreg.hf.view.trained_pass import prediction_of
from advreg.hf.view.view import HFModelView
from observe import Batch, quiet
from tiny_models import tiny_batch


def test_a_user_s_loss_gets_logits_batch_and_copies() -> None:
    seen = []

    def compute_loss(model: Any, inputs: Any, batch: Batch, copies: int) -> Tensor:
        seen.append((model(**inputs).logits, batch, copies))
        return seen[0][0].sum()

    task = HFModelView(quiet("bert"), compute_loss=compute_loss)
    batch = tiny_batch("bert")
    logits = task.logits(batch)
    assert torch.equal(task.loss(logits, batch), logits.sum())
    assert seen[0][0] is logits
    assert seen[0][1] is batch
    assert seen[0][2] == 1


def test_a_model_without_logits_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"must output `logits`, got BaseModelOutput.* with \['last_hidden_state'"
    ):
        prediction_of(
            quiet("bert").bert(**{k: v for k, v in tiny_batch("bert").items() if k != "labels"})
        )


def test_neither_labels_nor_ids_reach_the_model_and_nothing_is_kept_for_generation() -> None:
    seen: list[dict[str, Any]] = []
    for family in ("gpt2-lm", "marian", "bert"):
        model, batch = (
            quiet(family),
            {**tiny_batch(family), "sample_id": torch.arange(4), "num_items_in_batch": 4},
        )
        model.register_forward_hook(
            lambda module, args, kwargs, output: seen.append(kwargs), with_kwargs=True
        )
        task = HFModelView(model)
        task.paired_logits(batch, task.zeros(batch))
        names = {"input_ids", "attention_mask"} | (
            {"decoder_input_ids"} if family == "marian" else set()
        )
        for inputs in seen:
            assert set(inputs) - {"use_cache"} == names
            assert inputs.get("use_cache", False) is False
            assert ("use_cache" in inputs) == (family != "bert")
        seen.clear()
