"""Caches resharded to another number of processes: no perturbation is lost or changed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation
from advreg.core.shard import Shard
from advreg.memory.cache import CacheDtype, PerturbationCache
from padded import few, perturbation, random_samples

WIDTHS = {"encoder": 3, "decoder": 2}


def lengths_of(size: int, shard: Shard, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = {stream: torch.randint(1, 6, (size,), generator=generator) for stream in WIDTHS}
    return {stream: length[shard.rank :: shard.world] for stream, length in drawn.items()}


def cache_of(cached: list[int], shard: Shard, seed: int, dtype: CacheDtype) -> PerturbationCache:
    ids = torch.tensor(cached, dtype=torch.int64)
    return PerturbationCache(
        ids[shard.owns(ids)], shard, lengths_of(shard.size, shard, seed), WIDTHS, dtype
    )


def delta_of(ids: list[int], size: int, seed: int) -> Perturbation:
    """δ of each sample, drawn from its id."""
    lengths = lengths_of(size, Shard(size), seed)
    return perturbation(
        {
            stream: [
                random_samples([int(lengths[stream][index])], index, width)[0] for index in ids
            ]
            for stream, width in WIDTHS.items()
        }
    )


def filled(cached: list[int], shard: Shard, seed: int, dtype: CacheDtype) -> PerturbationCache:
    cache = cache_of(cached, shard, seed, dtype)
    for epoch, index in enumerate(
        cache.ids.tolist()[: len(cached) - 1]
    ):  # one may be left unwritten
        cache.write(
            torch.tensor([index]), delta_of([index], shard.size, seed), 0.0, Ball(100.0), epoch
        )
    return cache


@few
@given(
    st.integers(1, 14),
    st.sampled_from([(2, 1), (1, 2), (4, 2), (2, 3), (3, 5), (1, 1)]),
    st.sampled_from(["float32", "float16"]),
    st.data(),
)
def test_every_process_reads_back_what_another_had_cached(
    size: int, worlds: tuple[int, int], dtype: CacheDtype, data: st.DataObject
) -> None:
    cached = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    before, after = worlds
    old = [filled(cached, Shard(size, rank, before), 1, dtype) for rank in range(before)]
    found = []
    for rank in range(after):
        shard = Shard(size, rank, after)
        cache = cache_of(cached, shard, 1, dtype)
        assert sum(cache.load_state_dict(each.state_dict(), whole=False) for each in old) == len(
            cache.ids
        )
        found += cache.ids.tolist()
        for index in cache.ids:
            then, one = old[int(index) % before], index[None]
            like = delta_of([int(index)], size, 1)
            mine, theirs = cache.read(one, like), then.read(one, like)
            for stream in WIDTHS:
                assert torch.equal(mine.values[stream], theirs.values[stream])
                assert torch.equal(
                    cache.means(stream, cache.find(one, like)),
                    then.means(stream, then.find(one, like)),
                )
            assert cache.written_at[cache.find(one, like)] == then.written_at[then.find(one, like)]
    assert sorted(found) == cached


@pytest.mark.parametrize("worlds", [(2, 1), (4, 2), (2, 3)])
def test_there_and_back_is_the_same_bit_for_bit(worlds: tuple[int, int]) -> None:
    cached, size = list(range(0, 40, 3)), 40

    def dealt(caches: list[PerturbationCache], world: int) -> list[PerturbationCache]:
        found = [cache_of(cached, Shard(size, rank, world), 2, "float16") for rank in range(world)]
        for cache in found:
            for each in caches:
                cache.load_state_dict(each.state_dict(), whole=False)
        return found

    before, after = worlds
    old = [filled(cached, Shard(size, rank, before), 2, "float16") for rank in range(before)]
    back = dealt(dealt(old, after), before)
    for mine, again in zip(old, back, strict=True):
        then, now = mine.state_dict(), again.state_dict()
        assert set(then) == set(now)
        assert all(torch.equal(then[name], now[name]) for name in then)
