"""Packed rows under a kernel that attends within documents alone, on a GPU."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from advreg.core.ball import uniform_noise
from advreg.hf.view.view import HFModelView
from tiny_models import tiny

pytestmark = pytest.mark.gpu
LENGTHS = (5, 9, 3)
_WINDOW = (-1, 0)  # causal


def varlen(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **ways: Any
) -> tuple[Tensor, None]:
    """Attention by torch's kernel for sequences of unequal length, (1, H, L, D) → (1, L, H, D)."""
    from torch.nn.attention.varlen import varlen_attn

    causal: dict[str, Any] = {"is_causal": True}
    if "is_causal" not in inspect.signature(varlen_attn).parameters:
        causal = {"window_size": _WINDOW}
    rows = [part.transpose(1, 2).flatten(0, 1) for part in (query, key, value)]
    bounds = [ways[f"cu_seq_lens_{side}"] for side in "qk"]
    longest = [int(ways[f"max_length_{side}"]) for side in "qk"]
    return varlen_attn(*rows, *bounds, *longest, **causal)[None], None


AttentionInterface.register("advreg_varlen", varlen)


def packed() -> dict[str, Any]:
    ids = torch.randint(5, 45, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0)).cuda()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None].cuda()
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).int().cuda()
    labels = ids.masked_fill(positions == 0, -100)
    sides = {f"cu_seq_lens_{side}": bounds for side in "qk"} | {
        f"max_length_{side}": max(LENGTHS) for side in "qk"
    }
    return {"input_ids": ids, "position_ids": positions, "labels": labels, **sides}


def test_the_copies_of_packed_rows_are_equal_without_a_perturbation() -> None:
    model = tiny(
        "llama-lm", dropout=0.0, dtype=torch.bfloat16, attn_implementation="advreg_varlen"
    ).cuda()
    task, batch = HFModelView(model), packed()
    clean, perturbed = task.paired_logits(batch, task.zeros(batch))
    assert torch.equal(clean, perturbed)
    noise = task.zeros(batch).map(uniform_noise)
    assert noise.batch_size == len(LENGTHS)
    assert not torch.equal(task.bare_logits(batch, noise), clean)


def test_documents_of_packed_rows_do_not_see_each_other() -> None:
    model = tiny(
        "llama-lm", dropout=0.0, dtype=torch.bfloat16, attn_implementation="advreg_varlen"
    ).cuda()
    task, batch = HFModelView(model), packed()
    noise = task.zeros(batch).map(lambda values, mask: 0.5 * uniform_noise(values, mask))
    moved = task.bare_logits(batch, noise)
    alone = tiny("llama-lm", dropout=0.0, dtype=torch.bfloat16).cuda()
    start = 0
    for document, length in enumerate(LENGTHS):
        ids = batch["input_ids"][:, start : start + length]
        embedded = alone.get_input_embeddings()(ids)
        embedded = (embedded + noise.values["tokens"][document : document + 1, :length]).to(
            torch.bfloat16
        )
        expected = alone(inputs_embeds=embedded).logits
        torch.testing.assert_close(moved[:, start : start + length], expected, atol=0.05, rtol=0.05)
        start += length
