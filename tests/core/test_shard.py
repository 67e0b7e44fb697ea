"""Which samples belong to which process."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.shard import Shard

sizes, worlds = st.integers(0, 60), st.integers(1, 9)


@given(sizes, worlds)
def test_every_sample_belongs_to_one_process_and_shards_differ_by_one_sample_at_most(
    size: int, world: int
) -> None:
    shards = [Shard(size, rank, world) for rank in range(world)]
    assert sorted(index for shard in shards for index in shard.ids) == list(range(size))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(sizes, worlds, st.data())
def test_rows_are_places_among_the_own_samples(size: int, world: int, data: st.DataObject) -> None:
    shard = Shard(size, data.draw(st.integers(0, world - 1)), world)
    ids = torch.tensor(shard.ids, dtype=torch.int64)
    assert shard.rows(ids).tolist() == list(range(len(shard)))
    assert shard.ids_at(shard.rows(ids)).tolist() == list(shard.ids)


@given(sizes, worlds, st.data())
def test_what_is_owned_is_what_the_shard_lists(size: int, world: int, data: st.DataObject) -> None:
    shard = Shard(size, data.draw(st.integers(0, world - 1)), world)
    ids = torch.arange(-5, size + 5)
    assert ids[shard.owns(ids)].tolist() == list(shard.ids)


@given(sizes, worlds)
def test_shards_of_twice_as_many_processes_are_halves(size: int, world: int) -> None:
    for rank in range(world):
        halves = [Shard(size, half, 2 * world) for half in (rank, rank + world)]
        assert sorted(index for half in halves for index in half.ids) == list(
            Shard(size, rank, world).ids
        )


def test_processes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rank must be at least 0 and below world \(2\), got 2"):
        Shard(8, rank=2, world=2)
    with pytest.raises(ValueError, match="world must be a whole number of 1 or more, got 0"):
        Shard(8, world=0)
