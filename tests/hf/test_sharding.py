"""Batches of one process of many."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from advreg.core.shard import Shard
from advreg.hf.sharding import ShardBatches

sizes, worlds, batch_sizes = st.integers(1, 80), st.integers(1, 6), st.integers(1, 9)


def samplers_of(size: int, world: int, batch_size: int, **settings: object) -> list[ShardBatches]:
    return [
        ShardBatches(Shard(size, rank, world), batch_size, 3, **settings) for rank in range(world)
    ]  # type: ignore[arg-type]


@given(sizes, worlds, batch_sizes, st.integers(0, 3))
def test_every_sample_comes_once_in_an_epoch_and_always_to_the_same_process(
    size: int, world: int, batch_size: int, epoch: int
) -> None:
    assume(size >= world)
    seen = []
    for rank, sampler in enumerate(samplers_of(size, world, batch_size)):
        sampler.set_epoch(epoch)
        own = [index for batch in sampler for index in batch]
        assert {index % world for index in own} == {rank}
        seen += own
    assert sorted(seen) == list(range(size))


@given(sizes, worlds, batch_sizes, st.booleans())
def test_all_processes_take_as_many_steps_and_none_is_empty(
    size: int, world: int, batch_size: int, grouped: bool
) -> None:
    assume(size >= world)
    lengths = [
        np.arange(len(Shard(size, rank, world))) if grouped else None for rank in range(world)
    ]
    steps = set()
    for rank in range(world):
        sampler = ShardBatches(Shard(size, rank, world), batch_size, lengths=lengths[rank])
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert min(map(len, batches)) >= 1
        steps.add(len(batches))
    assert len(steps) == 1


@given(sizes, worlds, batch_sizes)
def test_batches_are_full_but_the_last_two(size: int, world: int, batch_size: int) -> None:
    assume(size >= world)
    for sampler in samplers_of(size, world, batch_size):
        counts = [len(batch) for batch in sampler]
        assert set(counts[:-2]) <= {batch_size}
        assert max(counts) <= (batch_size if batch_size > 1 else 2)


@given(sizes, worlds, batch_sizes)
def test_dropping_the_rest_leaves_only_full_batches(size: int, world: int, batch_size: int) -> None:
    assume(size // world >= batch_size)
    samplers = samplers_of(size, world, batch_size, drop_last=True)
    assert {len(list(sampler)) for sampler in samplers} == {size // world // batch_size}
    for sampler in samplers:
        batches = list(sampler)
        assert {len(batch) for batch in batches} == {batch_size}
        assert len({index for batch in batches for index in batch}) == batch_size * len(batches)


def test_the_order_is_drawn_for_each_epoch_and_process_and_again_for_the_same() -> None:
    def order(rank: int, epoch: int, seed: int = 3) -> list[int]:
        sampler = ShardBatches(Shard(80, rank, 2), 4, seed)
        sampler.set_epoch(epoch)
        return [index // 2 for batch in sampler for index in batch]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(*which)) for which in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 4))}) == 5


def test_without_shuffling_the_order_is_that_of_the_ids_in_every_epoch() -> None:
    for epoch in (0, 1):
        samplers = samplers_of(7, 2, 2, shuffle=False)
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert [list(sampler) for sampler in samplers] == [[[0, 2], [4, 6]], [[1, 3], [5]]]


def test_a_process_with_fewer_samples_splits_its_last_full_batch() -> None:
    """Nine samples for two processes in batches of four: the second has four, and must take two
    steps all the same.
    """
    assert [list(sampler) for sampler in samplers_of(9, 2, 4, shuffle=False)] == [
        [[0, 2, 4, 6], [8]],
        [[1, 3, 5], [7]],
    ]


def test_samples_of_like_length_share_a_batch_and_the_order_still_changes() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 1000)
    sampler = ShardBatches(Shard(2000, 1, 2), 10, lengths=lengths)

    def spread(batches: list[list[int]]) -> float:
        return float(np.mean([np.ptp(lengths[np.array(batch) // 2]) for batch in batches]))

    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert spread(first) < 15 < 300 < spread(list(ShardBatches(Shard(2000, 1, 2), 10)))
    assert first != second
    widths = [max(lengths[np.array(batch) // 2]) for batch in first[:50]]
    assert all(one >= other for one, other in pairwise(widths))


def test_a_loader_that_skips_batches_goes_on_in_the_epoch_it_is_set_to() -> None:
    """A run resumed in mid-epoch does so. Some versions of transformers set the epoch on the loader
    alone.
    """

    def loader() -> Any:
        batches = ShardBatches(Shard(30, 1, 2), 4)
        return prepare_data_loader(
            DataLoader(range(30), batch_sampler=batches), num_processes=1, process_index=0
        )  # type: ignore[arg-type]

    whole, rest = loader(), skip_first_batches(loader(), 2)
    orders = []
    for epoch in (0, 3):
        whole.set_epoch(epoch)
        rest.set_epoch(epoch)
        orders.append([batch.tolist() for batch in whole])
        assert [batch.tolist() for batch in rest] == orders[-1][2:]
    assert orders[0] != orders[1]


def test_more_processes_than_samples_are_refused() -> None:
    with pytest.raises(
        ValueError, match="must have a sample for each of 4 processes, got 3 samples; start fewer"
    ):
        ShardBatches(Shard(3, 0, 4), 2)
    with pytest.raises(
        ValueError,
        match=r"a batch of 5 for each of 2 processes, got 9 samples; start .*, or lower the",
    ):
        ShardBatches(Shard(9, 0, 2), 5, drop_last=True)
    with pytest.raises(ValueError, match="batch_size must be a whole number of 1 or more, got 0"):
        ShardBatches(Shard(9, 0, 2), 0)
