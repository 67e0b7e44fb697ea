"""Attention over short rows, against PyTorch's own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.short_attention import attend
from attention_rows import drawn_mask, drawn_states

sizes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 3),
        "queries": st.integers(1, 9),
        "keys": st.integers(1, 9),
        "heads": st.integers(1, 2),
    }
)


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """PyTorch's, which has heads before positions."""
    heads_first = (states.transpose(1, 2) for states in (q, k, v))
    found = F.scaled_dot_product_attention(
        *heads_first, attn_mask=mask, is_causal=causal, scale=scale
    )
    return found.transpose(1, 2)


@settings(max_examples=40, deadline=None)
@given(sizes, st.sampled_from(["all", "masked", "causal"]), st.integers(0, 1000))
def test_output_and_gradients_are_those_of_pytorch(
    sizes: dict[str, int], kind: str, seed: int
) -> None:
    if kind == "causal":
        sizes["keys"] = sizes["queries"]
    states = drawn_states(**sizes, width=4, dtype=torch.float64, seed=seed)
    mask = drawn_mask(**sizes, seed=seed) if kind == "masked" else None
    outputs, slopes = [], []
    for way in (attend, reference):
        leaves = [each.clone().requires_grad_() for each in states]
        found = way(*leaves, mask, kind == "causal", 0.3)
        outputs.append(found.detach())
        slopes.append(
            torch.autograd.grad((found * torch.arange(found.numel()).view_as(found)).sum(), leaves)
        )
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(slopes[0], slopes[1])


def test_a_query_that_sees_no_key_gets_zeros_and_sends_nothing_back() -> None:
    states = drawn_states(rows=1, queries=3, keys=4, heads=1, width=4)
    leaves = [each.requires_grad_() for each in states]
    mask = torch.ones(1, 1, 3, 4, dtype=torch.bool)
    mask[:, :, 1] = False
    found = attend(*leaves, mask, False, 0.5)
    assert torch.equal(found[0, 1], torch.zeros(1, 4))
    slopes = torch.autograd.grad(found[0, 1].sum() + found.square().sum(), leaves)
    assert all(bool(torch.isfinite(slope).all()) for slope in slopes)
    assert torch.equal(slopes[0][0, 1], torch.zeros(1, 4))


@pytest.mark.parametrize("causal", [False, True])
def test_torch_may_trace_and_compile_it(causal: bool) -> None:
    """Shapes of its outputs, its gradient, and that it changes none of its inputs: all checked by
    torch itself.
    """
    q, k, v = (
        each.requires_grad_() for each in drawn_states(rows=2, queries=5, keys=5, heads=2, width=4)
    )
    mask = None if causal else drawn_mask(rows=2, queries=5, keys=5)
    torch.library.opcheck(
        torch.ops.advreg.short_attention.default, (q, k, v, mask, causal, 1 / math.sqrt(4))
    )
