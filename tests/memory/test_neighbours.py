from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation
from advreg.memory import neighbours
from advreg.memory.cache import PerturbationCache
from advreg.memory.corpus import Corpus
from advreg.memory.neighbours import NeighbourIndex, nearest, strangers
from advreg.methods.arch import Arch
from padded import SIDES, Side, few, on_padding, perturbation, random_samples, real, same, seeds, sides

SIZES = {"encoder": [3, 1, 4, 2, 5, 2, 1, 3], "decoder": [2, 4, 1, 3, 2, 5, 3, 1]}
WIDTHS = {"encoder": 3, "decoder": 2}
CACHED = [6, 1, 4, 3]
UNCACHED = [0, 2, 5, 7]
EVERYONE = range(8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(ids: Sequence[int], seed: int) -> dict[str, list[Tensor]]:
    return {
        stream: random_samples([sizes[sample] for sample in ids], seed + len(stream), WIDTHS[stream])
        for stream, sizes in SIZES.items()
    }


def zeros_for(ids: Sequence[int], side: Side = "right", extra: int = 0) -> Perturbation:
    return perturbation({s: [torch.zeros_like(row) for row in rows] for s, rows in drawn(ids, 0).items()}, side, extra)


def filled_cache(written: Sequence[int], seed: int) -> tuple[PerturbationCache, dict[str, dict[int, Tensor]]]:
    """A cache in which these samples were written, and what was written, by stream and id."""
    lengths = {stream: torch.tensor(sizes) for stream, sizes in SIZES.items()}
    cache = PerturbationCache(torch.tensor(CACHED), len(EVERYONE), lengths, WIDTHS)
    rows = drawn(written, seed)
    if written:
        cache.write(torch.tensor(written), perturbation(rows), 0.0, Ball(1e3), epoch=0)
    return cache, {stream: dict(zip(written, rows[stream], strict=True)) for stream in SIZES}


def cosine(one: list[float], other: list[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / lengths if lengths else 0.0


def naive_nearest(query: Tensor, anchors: Tensor, count: int) -> list[int]:
    scores = [cosine(query.tolist(), anchor.tolist()) for anchor in anchors]
    return sorted(range(len(scores)), key=lambda anchor: -scores[anchor])[:count]


def naive_borrow(length: int, their_rows: list[Tensor]) -> list[list[float]]:
    """δ_{i,ℓ} = 1/|K_i| Σ_j 1/ℓ_j Σ_ℓ′ δ_{j,ℓ′} for each ℓ: equation construct-adv, loop by loop."""
    width = their_rows[0].shape[1]
    mean = [0.0] * width
    for rows in their_rows:
        for row in rows.tolist():
            for at in range(width):
                mean[at] += row[at] / len(rows) / len(their_rows)
    return [mean] * length


@few
@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 6), seeds)
def test_the_nearest_are_those_of_highest_cosine_similarity(queries: int, anchors: int, count: int, seed: int) -> None:
    count = min(count, anchors)
    vectors = torch.randn(queries + anchors, 4, generator=seeded(seed))
    found = nearest(vectors[:queries], vectors[queries:], count)
    assert found.tolist() == [naive_nearest(query, vectors[queries:], count) for query in vectors[:queries]]


def test_neither_the_dot_product_nor_the_distance_decides_who_is_near() -> None:
    anchors = torch.tensor([[200.0, 0.0], [50.0, 50.0], [3.0, 4.0]])  # by dot product: 0, 1, 2; by distance: 2, 1, 0
    assert nearest(torch.tensor([[1.0, 1.0]]), anchors, 3).tolist() == [[1, 2, 0]]


@few
@given(seeds, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_length_of_a_sentence_vector_does_not_matter(seed: int, one: float, other: float) -> None:
    queries, anchors = torch.randn(5, 4, generator=seeded(seed)), torch.randn(6, 4, generator=seeded(seed + 1))
    stretched = anchors * torch.tensor([one, 1, other, 1, one, other])[:, None]
    assert torch.equal(nearest(queries * other, stretched, 3), nearest(queries, anchors, 3))


@pytest.mark.parametrize("chunk", [1, 3, 10, 11, 100])
def test_searching_in_chunks_changes_nothing(chunk: int) -> None:
    queries, anchors = torch.randn(10, 4, generator=seeded(0)), torch.randn(7, 4, generator=seeded(1))
    assert torch.equal(nearest(queries, anchors, 3, chunk), nearest(queries, anchors, 3))


def test_half_precision_vectors_are_compared_in_float32() -> None:
    queries, anchors = torch.randn(5, 64, generator=seeded(0)).half(), torch.randn(6, 64, generator=seeded(1)).half()
    assert torch.equal(nearest(queries, anchors, 2), nearest(queries.float(), anchors.float(), 2))


def test_a_zero_sentence_vector_has_similarity_zero_to_everything() -> None:
    anchors = torch.tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    assert nearest(torch.tensor([[1.0, 0.0]]), anchors, 3).tolist() == [[1, 0, 2]]
    assert sorted(nearest(torch.zeros(1, 2), anchors, 3)[0].tolist()) == [0, 1, 2]


def test_without_a_query_nothing_is_found() -> None:
    assert nearest(torch.empty(0, 4), torch.randn(3, 4), 2).shape == (0, 2)


@few
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), seeds)
def test_strangers_are_different_anchors_and_the_same_under_the_same_seed(
    queries: int, anchors: int, count: int, seed: int
) -> None:
    count = min(count, anchors)
    found = strangers(queries, anchors, count, seeded(seed))
    assert found.shape == (queries, count)
    assert all(len(set(row)) == count and set(row) <= set(range(anchors)) for row in found.tolist())
    assert torch.equal(found, strangers(queries, anchors, count, seeded(seed)))


def test_strangers_depend_on_the_seed_and_favour_nobody() -> None:
    found = strangers(3000, 5, 2, seeded(0))
    assert not torch.equal(found, strangers(3000, 5, 2, seeded(1)))
    assert bool(((found.flatten().bincount() - 1200).abs() < 150).all())  # 1200 expected, standard deviation 27


def test_strangers_are_drawn_for_every_query_when_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_QUERIES_AT_ONCE", 4)
    found = strangers(10, 6, 3, seeded(0))
    assert found.shape == (10, 3)
    assert len({tuple(row) for row in found.tolist()}) > 5  # not one part repeated


def test_each_stream_has_its_own_neighbours_as_slots_of_the_cache() -> None:
    vectors = {"encoder": torch.randn(8, 5, generator=seeded(2)), "decoder": torch.randn(8, 4, generator=seeded(3))}
    index = NeighbourIndex.build(vectors, torch.tensor(CACHED), 2, "nearest", seeded(0))
    for stream, vector in vectors.items():
        for sample in UNCACHED:
            slots = index.slots[stream][sample].tolist()
            assert slots == naive_nearest(vector[sample], vector[CACHED], 2)
    assert not torch.equal(index.slots["encoder"][UNCACHED], index.slots["decoder"][UNCACHED])


def test_random_neighbours_are_drawn_with_the_generator_and_do_not_look_at_the_vectors() -> None:
    vectors = {"encoder": torch.randn(50, 5), "decoder": torch.randn(50, 4)}
    zeros = {stream: torch.zeros_like(vector) for stream, vector in vectors.items()}
    cached = torch.arange(0, 50, 5)
    first, second, other = (
        NeighbourIndex.build(given_vectors, cached, 3, "random", seeded(seed)).slots
        for given_vectors, seed in ((vectors, 4), (zeros, 4), (vectors, 5))
    )
    assert all(torch.equal(first[stream], second[stream]) for stream in vectors)
    assert not torch.equal(first["encoder"], other["encoder"])
    assert not torch.equal(first["encoder"], first["decoder"])


@pytest.mark.parametrize("choice", ["nearest", "random"])
def test_more_neighbours_than_cached_samples_are_refused(choice: neighbours.NeighbourChoice) -> None:
    with pytest.raises(
        ValueError, match=r"at most the number of cached samples \(4\), got 5; lower neighbours or raise"
    ):
        NeighbourIndex.build({"tokens": torch.randn(8, 2)}, torch.tensor(CACHED), 5, choice, seeded(0))


@few
@given(
    seed=seeds,
    count=st.integers(1, 4),
    written=st.lists(st.sampled_from(CACHED), unique=True),
    ids=st.lists(st.sampled_from(UNCACHED), min_size=1, unique=True),
    side=sides,
    extra=st.integers(0, 3),
)
def test_a_borrowed_delta_is_the_mean_over_neighbours_of_the_mean_over_their_tokens(
    seed: int, count: int, written: list[int], ids: list[int], side: Side, extra: int
) -> None:
    cache, rows = filled_cache(written, seed)
    slots = {stream: strangers(8, 4, count, seeded(seed + at)) for at, stream in enumerate(SIZES)}
    like = zeros_for(ids, side, extra)
    borrowed = NeighbourIndex(slots).borrow(torch.tensor(ids), cache, like)
    assert not on_padding(borrowed).any()
    for stream in SIZES:
        for sample, ours in zip(ids, real(borrowed, stream), strict=True):
            them = [CACHED[slot] for slot in slots[stream][sample].tolist()]
            theirs = [rows[stream][other] for other in them if other in written]  # the others do not count
            length = SIZES[stream][sample]
            expected = naive_borrow(length, theirs) if theirs else [[0.0] * WIDTHS[stream]] * length
            torch.testing.assert_close(ours, torch.tensor(expected))


def test_neighbours_of_different_lengths_weigh_the_same() -> None:
    lengths = {"tokens": torch.tensor([1, 4, 2])}
    cache = PerturbationCache(torch.tensor([0, 1]), 3, lengths, {"tokens": 1})
    cache.write(torch.tensor([0, 1]), perturbation([torch.ones(1, 1), torch.full((4, 1), 3.0)]), 0.0, Ball(9), epoch=0)
    index = NeighbourIndex({"tokens": torch.tensor([[0, 1]] * 3)})
    borrowed = index.borrow(torch.tensor([2]), cache, perturbation([torch.zeros(2, 1)]))
    assert borrowed.values["tokens"].flatten().tolist() == [2.0, 2.0]  # and not 2.6, the mean over all five tokens


def corpus(vectors: dict[str, Tensor]) -> Corpus:
    return Corpus({stream: torch.tensor(sizes) for stream, sizes in SIZES.items()}, WIDTHS, vectors, "")


@pytest.mark.parametrize("side", SIDES)
def test_arch_reads_cached_samples_borrows_for_the_others_and_projects_both(side: Side) -> None:
    vectors = {"encoder": torch.randn(8, 5, generator=seeded(6)), "decoder": torch.randn(8, 4, generator=seeded(7))}
    arch = Arch(cache_fraction=0.5, neighbours=2, radius=0.5)
    arch.prepare(corpus(vectors), seed=0, device=torch.device("cpu"))
    cached = arch.cache.ids.tolist()
    found = arch.ball.rescale(perturbation(drawn(cached, seed=8)))
    arch.cache.write(torch.tensor(cached), found, arch.ema, arch.ball, epoch=0)
    recalled = arch.recall(torch.tensor(EVERYONE), zeros_for(EVERYONE, side))

    assert len(cached) == 4
    for stream in SIZES:
        theirs = dict(zip(cached, real(found, stream), strict=True))
        for sample, ours in zip(EVERYONE, real(recalled, stream), strict=True):
            if sample in cached:
                torch.testing.assert_close(ours, theirs[sample])
                continue
            closest = [cached[at] for at in naive_nearest(vectors[stream][sample], vectors[stream][cached], 2)]
            mean = torch.tensor(naive_borrow(len(ours), [theirs[other] for other in closest]))
            torch.testing.assert_close(ours, mean * min(1.0, 0.5 / mean.norm().item()))


def prepared(sizes: Sequence[int]) -> Arch:
    """ARCH of radius 1 that caches half of these samples."""
    arch = Arch(cache_fraction=0.5, radius=1.0)
    vectors = {"tokens": torch.ones(len(sizes), 2)}
    arch.prepare(Corpus({"tokens": torch.tensor(sizes)}, {"tokens": 2}, vectors, ""), 0, torch.device("cpu"))
    return arch


def test_a_long_sample_that_borrows_from_a_short_one_is_brought_back_into_the_ball() -> None:
    cached = int(prepared([1, 1]).cache.ids)
    arch = prepared([1 if sample == cached else 9 for sample in range(2)])
    on_surface = torch.tensor([[0.6, 0.8]])
    arch.cache.write(torch.tensor([cached]), perturbation([on_surface]), 0.0, arch.ball, epoch=0)
    recalled = arch.recall(torch.tensor([1 - cached]), perturbation([torch.zeros(9, 2)]))
    torch.testing.assert_close(real(recalled)[0], on_surface.expand(9, 2) / 3)  # nine such rows have norm 3


def test_a_shuffled_batch_borrows_shuffled() -> None:
    cache, _ = filled_cache(CACHED, seed=9)
    index = NeighbourIndex({stream: strangers(8, 4, 1, seeded(at)) for at, stream in enumerate(SIZES)})
    straight = index.borrow(torch.tensor(UNCACHED), cache, zeros_for(UNCACHED))
    backwards = index.borrow(torch.tensor(UNCACHED[::-1]), cache, zeros_for(UNCACHED[::-1]))
    for stream in SIZES:
        assert same(real(backwards, stream), real(straight, stream)[::-1])
