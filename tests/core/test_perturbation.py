from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.perturbation import Perturbation, blank_padding, scatter_real
from padded import (
    SIDES,
    Side,
    few,
    lengths,
    mask_of,
    on_padding,
    padded,
    perturbation,
    random_samples,
    real,
    same,
    seeds,
    sides,
)

TWO_STREAMS = {
    "encoder": random_samples([3, 1], seed=0),
    "decoder": random_samples([2, 4], seed=1, width=2),
}


@few
@given(lengths, seeds, sides, st.integers(0, 3))
def test_rows_are_laid_at_the_real_tokens_in_reading_order(
    sizes: list[int], seed: int, side: Side, extra: int
) -> None:
    samples = random_samples(sizes, seed)
    expected, mask = padded(samples, side, extra)
    assert torch.equal(scatter_real(torch.cat(samples), mask), expected)


def test_rows_skip_a_hole_in_the_mask() -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    laid = scatter_real(torch.tensor([[1.0], [2.0], [3.0]]), mask)
    assert laid.squeeze(-1).tolist() == [[1, 0, 2], [0, 3, 0]]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 7.0])
def test_whatever_stands_on_padding_is_wiped_and_the_rest_is_left_bit_for_bit(
    side: Side, junk: float
) -> None:
    samples = random_samples([2, 4, 1], seed=3)
    values, mask = padded(samples, side, extra=2, fill=junk)
    clean, _ = padded(samples, side, extra=2)
    assert torch.equal(blank_padding(values, mask), clean)


@pytest.mark.parametrize("junk", [math.nan, math.inf, 7.0])
def test_a_map_cannot_perturb_padding(junk: float) -> None:
    delta = perturbation(TWO_STREAMS, side="left", extra=1).map(
        lambda values, _: torch.full_like(values, junk)
    )
    assert not on_padding(delta).any()
    assert all(
        ((value == junk) | value.isnan()).all()
        for stream in TWO_STREAMS
        for value in real(delta, stream)
    )


def test_a_map_sees_each_stream_with_its_own_mask() -> None:
    delta = perturbation(TWO_STREAMS)
    counted = delta.map(lambda values, mask: mask.sum(1)[:, None, None].expand_as(values).float())
    assert [row[0, 0].item() for row in real(counted, "encoder")] == [3, 1]
    assert [row[0, 0].item() for row in real(counted, "decoder")] == [2, 4]


def test_zeros_have_the_width_of_each_stream_and_the_dtype_asked_for() -> None:
    masks = {"encoder": mask_of([3, 1]), "decoder": mask_of([2, 4])}
    zeros = Perturbation.zeros(masks, {"encoder": 5, "decoder": 6}, torch.float64)
    assert {stream: tuple(value.shape) for stream, value in zeros.values.items()} == {
        "encoder": (2, 3, 5),
        "decoder": (2, 4, 6),
    }
    assert all(value.dtype == torch.float64 and not value.any() for value in zeros.values.values())
    assert (zeros.streams, zeros.batch_size) == (("encoder", "decoder"), 2)


def test_plus_adds_the_other_times_the_factor_in_every_stream() -> None:
    delta = perturbation(TWO_STREAMS)
    total = delta.plus(delta.map(lambda values, _: values.sign()), factor=-0.5)
    for stream, samples in TWO_STREAMS.items():
        for ours, sample in zip(real(total, stream), samples, strict=True):
            expected = [[x - 0.5 * math.copysign(1, x) for x in row] for row in sample.tolist()]
            torch.testing.assert_close(ours, torch.tensor(expected))


def test_a_leaf_is_cut_from_its_history_and_shares_no_memory() -> None:
    source = torch.ones(1, 2, 3, requires_grad=True)
    delta = Perturbation({"tokens": source * 2}, {"tokens": mask_of([2])})
    leaf = delta.leaf()
    leaf.values["tokens"].sum().backward()
    with torch.no_grad():
        leaf.values["tokens"].zero_()
    assert source.grad is None
    assert bool((delta.values["tokens"] == 2).all())


def test_collected_gradients_are_those_of_the_backward_passes_added_up_and_zero_where_there_was_none() -> (
    None
):
    leaf = perturbation(TWO_STREAMS).leaf()
    (3 * leaf.values["encoder"]).sum().backward()
    (2 * leaf.values["encoder"]).sum().backward()
    collected = leaf.collected()
    assert bool((collected.values["encoder"] == 5).all())
    assert torch.equal(collected.values["decoder"], torch.zeros_like(leaf.values["decoder"]))


def test_a_detached_perturbation_passes_no_gradient_on() -> None:
    leaf = perturbation(TWO_STREAMS).leaf()
    assert not any(value.requires_grad for value in leaf.detach().values.values())


def test_the_doubled_batch_is_unperturbed_in_its_first_half_and_perturbed_in_its_second() -> None:
    delta = perturbation(TWO_STREAMS)
    doubled = delta.above_zeros()
    assert doubled.batch_size == 4
    for stream, samples in TWO_STREAMS.items():
        rows = real(doubled, stream)
        assert not any(row.any() for row in rows[:2])
        assert same(rows[2:], samples)
        assert torch.equal(doubled.masks[stream], torch.cat([delta.masks[stream]] * 2))


def test_where_takes_whole_samples_from_one_or_the_other_in_every_stream() -> None:
    ours = perturbation(TWO_STREAMS)
    theirs = ours.map(lambda values, _: values + 10)
    mixed = ours.where(torch.tensor([False, True]), theirs)
    for stream, samples in TWO_STREAMS.items():
        assert same(real(mixed, stream), [samples[0] + 10, samples[1]])


@few
@given(lengths, seeds, sides, st.integers(0, 3))
def test_the_sentence_norm_counts_real_tokens_of_all_streams(
    sizes: list[int], seed: int, side: Side, extra: int
) -> None:
    streams = {
        "encoder": random_samples(sizes, seed),
        "decoder": random_samples(sizes[::-1], seed + 1, width=2),
    }
    expected = [
        math.sqrt(sum(x * x for sample in pair for row in sample.tolist() for x in row))
        for pair in zip(streams["encoder"], streams["decoder"], strict=True)
    ]
    norms = perturbation(streams, side, extra).sentence_norm()
    torch.testing.assert_close(norms, torch.tensor(expected))
