"""The kernels of attention over short rows, against matrix products: on a GPU, or run by Triton's
interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from advreg.core.short_attention import LONGEST, WIDTHS
from attention_rows import drawn_mask, drawn_states

kernels: Any = pytest.importorskip(
    "advreg.core.short_attention_kernels", reason="Triton is made for Linux"
)

DEVICE = (
    "cuda" if torch.cuda.is_available() else "cpu"
)  # tests/conftest.py asks for the interpreter
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3}


def computed(name: str, *given: Any) -> list[Tensor]:
    """What a kernel makes of tensors that are on the host, brought back to it."""
    near = [value.to(DEVICE) if isinstance(value, Tensor) else value for value in given]
    return [value.cpu() for value in getattr(kernels, name)(*near)]


def check(states: list[Tensor], mask: Tensor | None, causal: bool) -> None:
    q, k, v = states
    scale, close = 0.4, {"rtol": 0.0, "atol": TOLERANCE[q.dtype]}
    gradient = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q.dtype)
    out, total = computed("forward", q, k, v, mask, causal, scale)
    expected, expected_total = torch.ops.advreg.short_attention(q, k, v, mask, causal, scale)
    torch.testing.assert_close(out, expected, **close)
    torch.testing.assert_close(total, expected_total, **close)
    found = computed("backward", gradient, q, k, v, mask, total, causal, scale)
    slopes = torch.ops.advreg.short_attention_backward(
        gradient, q, k, v, mask, expected_total, causal, scale
    )
    for slope, other in zip(found, slopes, strict=True):
        torch.testing.assert_close(slope, other, **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 7), (16, 16), (17, 33), (40, 9)])
def test_a_masked_row_of_any_length_is_computed_as_by_matrix_products(
    queries: int, keys: int, dtype: torch.dtype
) -> None:
    states = drawn_states(2, queries, keys, heads=2, width=16, dtype=dtype)
    check(states, drawn_mask(2, queries, keys), causal=False)
    check(states, None, causal=False)


@pytest.mark.parametrize("length", [1, 6, 16, 31])
def test_a_query_looks_back_only(length: int) -> None:
    check(drawn_states(2, length, length, heads=3, width=16), None, causal=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_heads_may_have_any_width_that_is_promised(width: int) -> None:
    check(drawn_states(1, 5, 6, heads=2, width=width), drawn_mask(1, 5, 6), causal=False)


def test_the_longest_row_fits() -> None:
    check(
        drawn_states(1, LONGEST, LONGEST, heads=1, width=16),
        drawn_mask(1, LONGEST, LONGEST),
        causal=False,
    )


def test_states_may_be_views_of_one_tensor() -> None:
    """As of a projection that makes queries, keys and values together; heads first, as transformers
    has them.
    """
    packed = drawn_states(2, 5, 5, heads=6, width=16)[0]
    q, k, v = (part.transpose(1, 2).transpose(1, 2) for part in packed.chunk(3, dim=2))
    assert not q.is_contiguous()
    check([q, k, v], drawn_mask(2, 5, 5), causal=False)


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    states, mask = (
        drawn_states(1, 3, 4, heads=1, width=16),
        torch.ones(1, 1, 3, 4, dtype=torch.bool),
    )
    mask[:, :, 1] = False
    check(states, mask, causal=False)
    out, _ = computed("forward", *states, mask, False, 0.4)
    assert torch.equal(out[0, 1], torch.zeros(1, 16))


def test_entries_of_a_head_that_do_not_lie_side_by_side_are_refused() -> None:
    q, k, v = drawn_states(1, 4, 4, heads=1, width=16)
    apart = q.transpose(-1, 1).contiguous().transpose(-1, 1)
    with pytest.raises(
        ValueError, match="entries of a head must lie side by side, got a stride of 4"
    ):
        kernels.forward(apart, k, v, None, False, 0.4)
