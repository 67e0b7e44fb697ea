from __future__ import annotations

import pytest
import torch
from torch import Tensor

from advreg.core.ball import Ball, Norm, Scope
from advreg.core.perturbation import Perturbation
from advreg.memory.cache import PerturbationCache
from advreg.memory.diagnostics import memory_health, similarity_histograms
from advreg.memory.neighbours import NeighbourIndex
from advreg.memory.tiers import Place, Tier
from advreg.records.diagnostics import Histogram
from padded import perturbation, random_samples

LENGTHS = [3, 1, 4, 2, 60, 2]
CACHED = [4, 1, 2, 5]
WIDTH = 3


def cache_of(tier: Tier = "device") -> PerturbationCache:
    lengths = {"tokens": torch.tensor(LENGTHS)}
    return PerturbationCache(
        torch.tensor(CACHED), len(LENGTHS), lengths, {"tokens": WIDTH}, "float32", Place(tier=tier)
    )


def written(cache: PerturbationCache, ids: list[int], epoch: int, ball: Ball) -> dict[int, Tensor]:
    """Write some δ inside the ball; what was written, by sample."""
    rows = random_samples([LENGTHS[sample] for sample in ids], epoch, WIDTH, 0.7)
    delta: Perturbation = ball.project(perturbation({"tokens": rows}))
    cache.write(torch.tensor(ids), delta, 0.0, ball, epoch)
    return {
        sample: delta.values["tokens"][place][delta.masks["tokens"][place]]
        for place, sample in enumerate(ids)
    }


@pytest.mark.parametrize("tier", ["device", "disk"])
@pytest.mark.parametrize(
    ("norm", "scope"), [("l2", "sample"), ("linf", "sample"), ("l2", "token"), ("linf", "token")]
)
def test_sizes_are_those_of_the_ball_relative_to_its_radius(
    norm: Norm, scope: Scope, tier: Tier
) -> None:
    cache, ball = cache_of(tier), Ball(1.5, norm, scope)
    rows = written(cache, [1, 2, 4], 0, ball)
    units = [part for row in rows.values() for part in (row if scope == "token" else [row])]
    sizes = [float(part.norm() if norm == "l2" else part.abs().max()) / 1.5 for part in units]
    (found,) = memory_health(cache, ball, []).sizes
    assert found == Histogram.of("tokens", sizes, 0.0, 1.0, len(found.counts))
    assert sum(found.counts) == len(sizes)


def test_a_ball_of_radius_zero_has_no_sizes() -> None:
    cache, ball = cache_of(), Ball(0.0)
    written(cache, [1], 0, ball)
    assert memory_health(cache, ball, []).sizes == []


def test_epochs_of_the_last_write_are_counted_and_what_was_never_written_too() -> None:
    cache, ball = cache_of(), Ball(1.0)
    written(cache, [1, 2], 0, ball)
    written(cache, [2], 3, ball)
    assert memory_health(cache, ball, []).written == {"-1": 2, "0": 1, "3": 1}


def test_tokens_of_short_samples_that_were_written_are_told_apart() -> None:
    cache, ball = cache_of(), Ball(1.0)
    rows = written(
        cache, [2, 1, 4], 0, ball
    )  # sample 4 is too long to be shown, 5 was never written
    found = {entry.sample: entry.norms for entry in memory_health(cache, ball, []).tokens}
    assert sorted(found) == [1, 2]
    for sample, norms in found.items():
        assert norms == pytest.approx([float(row.norm()) for row in rows[sample]])


def test_similarities_are_the_cosines_of_uncached_samples_to_their_neighbours() -> None:
    vectors = {"tokens": torch.randn(6, 5, generator=torch.Generator().manual_seed(0))}
    cached = torch.tensor([1, 2, 4, 5])
    index = NeighbourIndex.build(vectors, cached, 2, "nearest", torch.Generator())
    cosines = []
    for sample in (0, 3):
        mine = vectors["tokens"][sample]
        all_of_them = [
            float(mine @ other / mine.norm() / other.norm()) for other in vectors["tokens"][cached]
        ]
        cosines += sorted(all_of_them)[-2:]
    (found,) = similarity_histograms(vectors, cached, index)
    assert found == Histogram.of("tokens", cosines, -1.0, 1.0, len(found.counts))


def test_of_many_samples_some_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advreg.memory.diagnostics._MOST_SAMPLES", 2)
    cache, ball = cache_of(), Ball(1.0)
    written(cache, CACHED, 0, ball)
    assert sum(memory_health(cache, ball, []).sizes[0].counts) == 2
