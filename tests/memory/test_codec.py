from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advreg.memory.codec import CacheDtype, bytes_per_row, codec_for
from padded import few, seeds

DTYPES = get_args(CacheDtype)
widths = st.integers(1, 9)
scales = st.sampled_from([1e-30, 1e-6, 0.1, 1.0, 1e4])


def rows_of(seed: int, width: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(2, 3, width, generator=torch.Generator().manual_seed(seed))


def naive_integers(row: list[float], most: int) -> list[float]:
    """s · round(x / s) with s = max|x| / m, in exact rational steps of Python's floats."""
    step = max(abs(entry) for entry in row) / most
    return [0.0 if step == 0 else step * round(entry / step) for entry in row]


@pytest.mark.parametrize(("dtype", "most"), [("int8", 127), ("int4", 7)])
@few
@given(seed=seeds, width=widths, scale=st.sampled_from([1e-6, 0.1, 1e4]))
def test_integers_are_the_nearest_of_evenly_spaced_steps_up_to_the_largest_entry_of_the_row(
    dtype: CacheDtype, most: int, seed: int, width: int, scale: float
) -> None:
    codec, rows = codec_for(dtype, width), rows_of(seed, width, scale)
    decoded = codec.decode(codec.encode(rows), torch.float32)
    step = rows.abs().amax(-1, keepdim=True) / most
    assert bool(((decoded - rows).abs() <= 0.5001 * step).all())
    for row, exact in zip(
        decoded.reshape(-1, width).tolist(), rows.reshape(-1, width).tolist(), strict=True
    ):
        assert row == pytest.approx(naive_integers(exact, most), rel=1e-5, abs=1e-5 * scale)


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
@few
@given(seed=seeds, width=widths)
def test_floats_err_by_half_a_unit_in_the_last_place_at_most(
    dtype: CacheDtype, bits: int, seed: int, width: int
) -> None:
    codec, rows = codec_for(dtype, width), rows_of(seed, width)
    decoded = codec.decode(codec.encode(rows), torch.float32)
    assert bool(((decoded - rows).abs() <= (rows.abs() * 2.0**-bits).clamp_min(2.0**-25)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds, width=widths, scale=scales)
def test_storing_what_was_stored_changes_nothing_that_counts(
    dtype: CacheDtype, seed: int, width: int, scale: float
) -> None:
    codec = codec_for(dtype, width)
    once = codec.decode(codec.encode(rows_of(seed, width, scale)), torch.float32)
    twice = codec.decode(codec.encode(once), torch.float32)
    torch.testing.assert_close(twice, once, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds, width=widths, scale=scales)
def test_no_entry_grows_beyond_the_largest_of_its_row(
    dtype: CacheDtype, seed: int, width: int, scale: float
) -> None:
    codec, rows = codec_for(dtype, width), rows_of(seed, width, scale)
    decoded = codec.decode(codec.encode(rows), torch.float32)
    slack = 1 + (2.0**-8 if dtype == "bfloat16" else 2.0**-10)
    assert bool((decoded.abs() <= rows.abs().amax(-1, keepdim=True) * slack + 2.0**-25).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_zeros_decode_to_zeros_as_the_blank_row_needs(dtype: CacheDtype) -> None:
    codec = codec_for(dtype, 5)
    blank = {
        name: torch.zeros(4, *shape, dtype=kind) for name, (shape, kind) in codec.layout().items()
    }
    assert not codec.decode(blank, torch.float32).any()
    zeros = torch.zeros(4, 5)
    assert not codec.decode(codec.encode(zeros), torch.float32).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_takes_what_its_layout_says_and_no_row_disturbs_another(dtype: CacheDtype) -> None:
    codec, rows = codec_for(dtype, 7), rows_of(1, 7)
    parts = codec.encode(rows)
    assert {name: (part.shape[2:], part.dtype) for name, part in parts.items()} == {
        name: (torch.Size(shape), kind) for name, (shape, kind) in codec.layout().items()
    }
    assert bytes_per_row(codec) == sum(
        part[0, 0].numel() * part.element_size() for part in parts.values()
    )
    alone = codec.decode(codec.encode(rows[1, 2]), torch.float32)
    assert torch.equal(codec.decode(parts, torch.float32)[1, 2], alone)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 2048), ("float16", 1024), ("bfloat16", 1024), ("int8", 516), ("int4", 260)],
)
def test_a_row_of_512_takes_this_many_bytes(dtype: CacheDtype, size: int) -> None:
    assert bytes_per_row(codec_for(dtype, 512)) == size


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_row_too_small_for_a_scale_becomes_zero_and_not_nan(dtype: CacheDtype) -> None:
    codec = codec_for(dtype, 3)
    decoded = codec.decode(codec.encode(torch.full((1, 3), 1e-45)), torch.float32)
    assert all(math.isfinite(entry) and abs(entry) <= 1e-44 for entry in decoded.flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_decoded_to_the_precision_asked_for(dtype: CacheDtype) -> None:
    codec = codec_for(dtype, 4)
    assert codec.decode(codec.encode(torch.ones(2, 4)), torch.float64).dtype == torch.float64
