"""The pass that a loss function makes: what it gets, and what the model gets."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from advreg.core.schedule import Clock
from advreg.hf.view.trained_pass import prediction_of
from advreg.hf.view.view import HFModelView
from advreg.methods import Step, create
from observe import Batch, batch_of, gradients, quiet
from tiny_models import tiny, tiny_batch


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


class WithoutLogits(LlamaForCausalLM):
    """As liger-kernel patches a forward pass: in training no logits, unless they are asked for."""

    def forward(self, labels: Any = None, skip_logits: bool | None = None, **inputs: Any) -> Any:
        output = super().forward(labels=labels, **inputs)
        skips = self.training and labels is not None if skip_logits is None else skip_logits
        if skips:
            output.logits = None
        return output


@pytest.mark.parametrize("name", ["r3f", "rdrop", "simcut", "smart"])
def test_a_head_that_skips_its_logits_in_training_gives_them_on_request(name: str) -> None:
    plain = tiny("llama-lm", attention_dropout=0.1)
    patched = WithoutLogits(plain.config)
    patched.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, patched):
        torch.manual_seed(0)
        options = {} if name == "smart" else {"fuse": False}  # its loss is not known: two passes
        method = create(name, **options)
        report = method.step(HFModelView(model.train()), batch_of("llama-lm"), Step(Clock(0, 0)))
        found.append((report.loss, report.penalty, gradients(model)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)
