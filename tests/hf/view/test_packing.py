"""Documents of packed rows: where they lie, and that each has a perturbation of its own."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AttentionInterface

from advreg.core.ball import Ball, uniform_noise
from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.view.packing import Documents
from advreg.hf.view.view import HFModelView
from tiny_models import tiny


def packed(lengths: list[int], by: str = "positions") -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 5 + sum(lengths))[None] % 40 + 5
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    bounds = (
        {"cu_seq_lens_q": torch.tensor([0, *lengths]).cumsum(0).int()} if by == "bounds" else {}
    )
    return {
        "input_ids": ids,
        "position_ids": positions,
        "labels": ids.masked_fill(positions == 0, -100),
        **bounds,
    }


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6), st.sampled_from(["positions", "bounds"])
)
def test_taking_documents_apart_and_packing_them_again_changes_nothing(
    lengths: list[int], by: str
) -> None:
    batch = packed([max(2, length) for length in lengths] if by == "positions" else lengths, by)
    found = Documents.of(batch)
    assert found is not None
    apart = found.apart(batch["input_ids"])
    assert found.mask.sum(1).tolist() == [
        max(2, length) if by == "positions" else length for length in lengths
    ]
    again = found.packed(Perturbation({"tokens": apart[..., None].float()}, {"tokens": found.mask}))
    assert torch.equal(again.values["tokens"][..., 0].long(), batch["input_ids"])
    cut = found.packed(Cut({"tokens": apart % 2 == 0}))
    assert torch.equal(cut.values["tokens"], batch["input_ids"] % 2 == 0)


def test_a_row_of_one_document_is_not_packed() -> None:
    batch = packed([4])
    assert Documents.of(batch) is None
    assert Documents.of({**batch, "attention_mask": torch.ones(1, 4)}) is None


@pytest.mark.parametrize("by", ["positions", "bounds"])
def test_each_document_of_a_row_has_a_ball_of_its_own(by: str) -> None:
    task, batch = HFModelView(tiny("llama-lm", dropout=0.0)), packed([3, 5], by)
    delta = Ball(0.5).rescale(task.zeros(batch).map(uniform_noise))
    assert delta.sentence_norm().tolist() == pytest.approx([0.5, 0.5])
    clean, moved = task.paired_logits(batch, delta)
    assert moved.shape == clean.shape == (1, 8, 50)
    assert torch.equal(clean, task.paired_logits(batch, task.zeros(batch))[1])


def test_a_document_s_perturbation_stays_in_its_document() -> None:
    task, batch = HFModelView(tiny("llama-lm", dropout=0.0)), packed([3, 5])
    zeros = task.zeros(batch)
    first = zeros.map(
        lambda values, mask: torch.where(torch.arange(2)[:, None, None] == 0, 1.0, 0.0) + values
    )
    moved = (task.bare_logits(batch, first) - task.bare_logits(batch, zeros)).abs().sum(-1)[0]
    assert bool((moved[:3] > 0).all())
    assert float(moved[3:].max()) < 1e-5  # attention keeps documents apart


def varlen(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **ways: Any
) -> tuple[Tensor, None]:
    """A kernel for rows of unequal length: it takes them end to end, and leaves zeros beyond the
    boundaries.
    """
    rows, heads, length, width = query.shape
    flat = [
        part.transpose(0, 1).reshape(heads, rows * length, width) for part in (query, key, value)
    ]
    found = torch.zeros_like(flat[0])
    bounds = ways["cu_seq_lens_q"].tolist()
    for begin, end in itertools.pairwise(bounds):
        q, k, v = (part[None, :, begin:end] for part in flat)
        found[:, begin:end] = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    return found.view(heads, rows, length, width).permute(1, 2, 0, 3), None


AttentionInterface.register("emulated_varlen", varlen)


def test_the_copies_of_packed_rows_are_equal_under_a_kernel_that_reads_boundaries() -> None:
    """Doubled, the second copy would lie beyond the boundaries."""
    task = HFModelView(tiny("llama-lm", dropout=0.0, attn_implementation="emulated_varlen"))
    batch = packed([3, 5], "bounds")
    batch |= {"cu_seq_lens_k": batch["cu_seq_lens_q"], "max_length_q": 5, "max_length_k": 5}
    clean, perturbed = task.paired_logits(batch, task.zeros(batch))
    assert torch.equal(clean, perturbed)
    apart = HFModelView(tiny("llama-lm", dropout=0.0))
    alone = apart.bare_logits({"input_ids": batch["input_ids"][:, 3:]})
    torch.testing.assert_close(clean[:, 3:], alone, atol=1e-5, rtol=1e-5)
