from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
from advreg.memory.neighbours import (
    NeighbourIndex,
    nearest,
    random_anchors,
)
from advreg.methods.adversarial.arch import Arch
from padded import (
    SIDES,
    Side,
    few,
    on_padding,
    perturbation,
    random_samples,
    real,
    same,
    seeds,
    sides,
)

SIZES = {"encoder": [3, 1, 4, 2, 5, 2, 1, 3], "decoder": [2, 4, 1, 3, 2, 5, 3, 1]}
WIDTHS = {"encoder": 3, "decoder": 2}
CACHED = [6, 1, 4, 3]
UNCACHED = [0, 2, 5, 7]
EVERYONE = range(8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(ids: Sequence[int], seed: int) -> dict[str, list[Tensor]]:
    return {
        stream: random_samples(
            [sizes[sample] for sample in ids], seed + len(stream), WIDTHS[stream]
        )
        for stream, sizes in SIZES.items()
    }


def zeros_for(ids: Sequence[int], side: Side = "right", extra: int = 0) -> Perturbation:
    return perturbation(
        {s: [torch.zeros_like(row) for row in rows] for s, rows in drawn(ids, 0).items()},
        side,
        extra,
    )


def filled_cache(
    written: Sequence[int], seed: int
) -> tuple[PerturbationCache, dict[str, dict[int, Tensor]]]:
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
    """δ_{i,ℓ} = 1/|K_i| Σ_j 1/ℓ_j Σ_ℓ′ δ_{j,ℓ′} for each ℓ: equation construct-adv, loop by
    loop.
    """
    width = their_rows[0].shape[1]
    mean = [0.0] * width
    for rows in their_rows:
        for row in rows.tolist():
            for at in range(width):
                mean[at] += row[at] / len(rows) / len(their_rows)
    return [mean] * length


@few
@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 6), seeds)
def test_the_nearest_are_those_of_highest_cosine_similarity(
    queries: int, anchors: int, count: int, seed: int
) -> None:
    count = min(count, anchors)
    vectors = torch.randn(queries + anchors, 4, generator=seeded(seed))
    found = nearest(vectors[:queries], vectors[queries:], count)
    assert found.tolist() == [
        naive_nearest(query, vectors[queries:], count) for query in vectors[:queries]
    ]


def test_neither_the_dot_product_nor_the_distance_decides_who_is_near() -> None:
    anchors = torch.tensor(
        [[200.0, 0.0], [50.0, 50.0], [3.0, 4.0]]
    )  # by dot product: 0, 1, 2; by distance: 2, 1, 0
    assert nearest(torch.tensor([[1.0, 1.0]]), anchors, 3).tolist() == [[1, 2, 0]]


@few
@given(seeds, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_length_of_a_sentence_vector_does_not_matter(
    seed: int, one: float, other: float
) -> None:
    queries, anchors = (
        torch.randn(5, 4, generator=seeded(seed)),
        torch.randn(6, 4, generator=seeded(seed + 1)),
    )
    stretched = anchors * torch.tensor([one, 1, other, 1, one, other])[:, None]
    assert torch.equal(nearest(queries * other, stretched, 3), nearest(queries, anchors, 3))


@few
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(1, 200), seeds)
def test_searching_in_tiles_changes_nothing(
    queries: int, anchors: int, count: int, scores: int, seed: int
) -> None:
    count = min(count, anchors)
    vectors = torch.randn(queries + anchors, 4, generator=seeded(seed))
    whole = nearest(vectors[:queries], vectors[queries:], count)
    assert torch.equal(
        nearest(vectors[:queries], vectors[queries:], count, scores_at_once=scores), whole
    )


@few
@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 100), st.booleans())
def test_of_equal_anchors_the_lowest_is_found_however_the_tiles_fall(
    kinds: list[int], scores: int, first: bool
) -> None:
    """Along the axes every product is exactly 0 or 1."""
    axes = torch.eye(3)
    anchors, count = axes[kinds], 1 if first else len(kinds)
    found = nearest(axes, anchors, count, scores_at_once=scores).tolist()
    assert found == [
        sorted(range(len(kinds)), key=lambda at: (kinds[at] != axis, at))[:count]
        for axis in range(3)
    ]


def test_equal_anchors_share_the_places_when_several_are_asked_for() -> None:
    anchors = torch.tensor([[0.0, 1.0], [1.0, 0.0]])[[0, 1, 0, 1, 1, 0]]
    found = nearest(torch.tensor([[1.0, 0.0]]), anchors, 2)[0].tolist()
    assert found == sorted(found)  # which two of the three is left open
    assert set(found) < {1, 3, 4}


class Products:
    """Takes note of the shape of every product and precision it is computed in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.precisions: set[str] = set()
        plain = Tensor.__matmul__

        def noting(one: Tensor, other: Tensor) -> Tensor:
            product = plain(one, other)
            self.shapes.append(tuple(product.shape))
            self.precisions |= {precision() for precision in PRECISIONS} | {str(product.dtype)}
            return product

        monkeypatch.setattr(Tensor, "__matmul__", noting)


PRECISIONS: list[Any] = [
    lambda: torch.backends.cuda.matmul.fp32_precision,
    lambda: torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
]


@pytest.mark.parametrize("scores", [1, 20, 64, 1000, 10**6])
def test_no_more_scores_are_held_at_once_than_said(
    scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, anchors = (
        torch.randn(50, 4, generator=seeded(0)),
        torch.randn(70, 4, generator=seeded(1)),
    )
    products = Products(monkeypatch)
    nearest(queries, anchors, 2, scores_at_once=scores)
    assert max(rows * columns for rows, columns in products.shapes) <= scores
    assert sum(rows * columns for rows, columns in products.shapes) == 50 * 70


def test_by_default_a_cpu_holds_four_million_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    products = Products(monkeypatch)
    nearest(torch.randn(3000, 2, generator=seeded(0)), torch.randn(2500, 2, generator=seeded(1)), 1)
    assert products.shapes == [(2048, 2048), (2048, 452), (952, 2048), (952, 452)]


@pytest.mark.parametrize("asked", ["highest", "high", "medium"])
def test_products_are_in_full_precision_whatever_was_set_and_the_setting_is_kept(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, anchors = (
        torch.randn(20, 64, generator=seeded(0)),
        torch.randn(30, 64, generator=seeded(1)),
    )
    plain = nearest(queries, anchors, 3)
    products = Products(monkeypatch)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    now = [precision() for precision in PRECISIONS]
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(nearest(queries, anchors, 3), plain)
        assert torch.get_float32_matmul_precision() == asked
        assert [precision() for precision in PRECISIONS] == now
    finally:
        torch.set_float32_matmul_precision(before)
    assert products.precisions == {"ieee", "torch.float32"}


def test_a_precision_set_for_one_backend_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    products = Products(monkeypatch)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        nearest(torch.randn(3, 2), torch.randn(4, 2), 1)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert products.precisions == {"ieee", "torch.float32"}


def test_the_setting_comes_back_when_the_search_fails() -> None:
    now = [precision() for precision in PRECISIONS]
    with pytest.raises(RuntimeError):
        nearest(torch.randn(3, 2), torch.randn(4, 3), 1)
    assert [precision() for precision in PRECISIONS] == now


@pytest.mark.parametrize("rows", [[], [4], [9, 0, 3, 3]])
def test_only_the_rows_asked_for_are_searched(rows: list[int]) -> None:
    queries, anchors = (
        torch.randn(10, 4, generator=seeded(0)),
        torch.randn(7, 4, generator=seeded(1)),
    )
    found = nearest(
        queries, anchors, 2, rows=torch.tensor(rows, dtype=torch.int64), scores_at_once=9
    )
    assert torch.equal(found, nearest(queries, anchors, 2)[rows])


def test_the_queries_done_are_told_part_by_part() -> None:
    told: list[int] = []
    nearest(torch.randn(10, 4), torch.randn(7, 4), 2, advance=told.append, scores_at_once=16)
    assert told == [4, 4, 2]


@pytest.mark.parametrize("count", [0, 5])
def test_a_count_there_are_no_anchors_for_is_refused(count: int) -> None:
    for ask in (
        lambda: nearest(torch.randn(2, 3), torch.randn(4, 3), count),
        lambda: random_anchors(2, 4, count, seeded(0)),
    ):
        with pytest.raises(
            ValueError,
            match=rf"count must be between 1 and the number of anchors \(4\), got {count}",
        ):
            ask()


def test_indices_are_small_and_on_the_host() -> None:
    for found in (
        nearest(torch.randn(3, 2), torch.randn(4, 2), 1),
        random_anchors(3, 4, 1, seeded(0)),
    ):
        assert (found.dtype, found.device.type) == (torch.int32, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("count", [1, 3])
def test_a_gpu_finds_the_same_wherever_the_queries_are(count: int) -> None:
    queries, anchors = (
        torch.randn(500, 32, generator=seeded(0)),
        torch.randn(300, 32, generator=seeded(1)),
    )
    told: list[int] = []
    there = nearest(
        queries, anchors, count, device="cuda", scores_at_once=2**14, advance=told.append
    )
    assert torch.equal(there, nearest(queries, anchors, count))
    assert torch.equal(there, nearest(queries.cuda(), anchors, count))
    assert torch.equal(there, nearest(queries.cuda(), anchors.cuda(), count, device="cpu"))
    assert told == [128, 128, 128, 116]


# ---- vectors


def test_half_precision_vectors_are_compared_in_float32() -> None:
    queries, anchors = (
        torch.randn(5, 64, generator=seeded(0)).half(),
        torch.randn(6, 64, generator=seeded(1)).half(),
    )
    assert torch.equal(nearest(queries, anchors, 2), nearest(queries.float(), anchors.float(), 2))


def test_a_zero_sentence_vector_has_similarity_zero_to_everything() -> None:
    anchors = torch.tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    assert nearest(torch.tensor([[1.0, 0.0]]), anchors, 3).tolist() == [[1, 0, 2]]
    assert sorted(nearest(torch.zeros(1, 2), anchors, 3)[0].tolist()) == [0, 1, 2]


def test_without_a_query_nothing_is_found() -> None:
    assert nearest(torch.empty(0, 4), torch.randn(3, 4), 2).shape == (0, 2)
    assert random_anchors(0, 3, 2, seeded(0)).shape == (0, 2)


@few
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), seeds)
def test_strangers_are_different_anchors_and_the_same_under_the_same_seed(
    queries: int, anchors: int, count: int, seed: int
) -> None:
    count = min(count, anchors)
    found = random_anchors(queries, anchors, count, seeded(seed))
    assert found.shape == (queries, count)
    assert all(len(set(row)) == count and set(row) <= set(range(anchors)) for row in found.tolist())
    assert torch.equal(found, random_anchors(queries, anchors, count, seeded(seed)))


def test_strangers_depend_on_the_seed_and_favour_nobody() -> None:
    found = random_anchors(3000, 5, 2, seeded(0))
    assert not torch.equal(found, random_anchors(3000, 5, 2, seeded(1)))
    assert bool(
        ((found.flatten().bincount() - 1200).abs() < 150).all()
    )  # 1200 expected, standard deviation 27


def test_every_set_of_strangers_is_as_likely() -> None:
    drawn = random_anchors(6000, 4, 2, seeded(0)).sort(dim=1).values
    sets = {(one, other): 0 for one in range(4) for other in range(one + 1, 4)}
    for one, other in drawn.tolist():
        sets[one, other] += 1
    assert all(abs(seen - 1000) < 150 for seen in sets.values())  # standard deviation 29


def test_strangers_among_very_many_anchors_take_no_room_for_them() -> None:
    found = random_anchors(1000, 10**9, 3, seeded(0))  # one row of a billion draws would be 4 GB
    assert found.double().mean() == pytest.approx(5e8, rel=0.05)


@pytest.mark.parametrize("choice", ["nearest", "random"])
def test_cached_samples_get_no_neighbours_and_only_the_others_are_counted(
    choice: neighbours.NeighbourChoice,
) -> None:
    vectors = {
        "encoder": torch.randn(8, 5, generator=seeded(2)),
        "decoder": torch.randn(8, 4, generator=seeded(3)),
    }
    told: list[int] = []
    index = NeighbourIndex.build(
        vectors, torch.tensor(CACHED), 3, choice, seeded(0), device="cpu", advance=told.append
    )
    again = NeighbourIndex.build(vectors, torch.tensor(CACHED), 3, choice, seeded(0))
    assert sum(told) == 2 * len(UNCACHED)
    for stream, slots in index.slots.items():
        assert (slots.shape, slots.dtype) == ((8, 3), torch.int32)
        assert not slots[CACHED].any()
        assert all(len(set(row)) == 3 for row in slots[UNCACHED].tolist())
        assert torch.equal(slots, again.slots[stream])


def test_the_vectors_of_cached_samples_are_no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    products = Products(monkeypatch)
    NeighbourIndex.build(
        {"tokens": torch.randn(8, 5)}, torch.tensor(CACHED), 1, "nearest", seeded(0)
    )
    assert products.shapes == [(len(UNCACHED), len(CACHED))]


def test_each_stream_has_its_own_neighbours_as_slots_of_the_cache() -> None:
    vectors = {
        "encoder": torch.randn(8, 5, generator=seeded(2)),
        "decoder": torch.randn(8, 4, generator=seeded(3)),
    }
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
def test_more_neighbours_than_cached_samples_are_refused(
    choice: neighbours.NeighbourChoice,
) -> None:
    with pytest.raises(
        ValueError,
        match=r"at most the number of cached samples \(4\), got 5; lower neighbours or raise",
    ):
        NeighbourIndex.build(
            {"tokens": torch.randn(8, 2)}, torch.tensor(CACHED), 5, choice, seeded(0)
        )


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
    slots = {
        stream: random_anchors(8, 4, count, seeded(seed + at)) for at, stream in enumerate(SIZES)
    }
    like = zeros_for(ids, side, extra)
    borrowed = NeighbourIndex(slots).borrow(torch.tensor(ids), cache, like)
    assert not on_padding(borrowed).any()
    for stream in SIZES:
        for sample, ours in zip(ids, real(borrowed, stream), strict=True):
            them = [CACHED[slot] for slot in slots[stream][sample].tolist()]
            theirs = [
                rows[stream][other] for other in them if other in written
            ]  # the others do not count
            length = SIZES[stream][sample]
            expected = naive_borrow(length, theirs) if theirs else [[0.0] * WIDTHS[stream]] * length
            torch.testing.assert_close(ours, torch.tensor(expected))


def test_neighbours_of_different_lengths_weigh_the_same() -> None:
    lengths = {"tokens": torch.tensor([1, 4, 2])}
    cache = PerturbationCache(torch.tensor([0, 1]), 3, lengths, {"tokens": 1})
    cache.write(
        torch.tensor([0, 1]),
        perturbation([torch.ones(1, 1), torch.full((4, 1), 3.0)]),
        0.0,
        Ball(9),
        epoch=0,
    )
    index = NeighbourIndex({"tokens": torch.tensor([[0, 1]] * 3)})
    borrowed = index.borrow(torch.tensor([2]), cache, perturbation([torch.zeros(2, 1)]))
    assert borrowed.values["tokens"].flatten().tolist() == [
        2.0,
        2.0,
    ]  # and not 2.6, the mean over all five tokens


def corpus(vectors: dict[str, Tensor]) -> Corpus:
    return Corpus(
        {stream: torch.tensor(sizes) for stream, sizes in SIZES.items()}, WIDTHS, vectors, ""
    )


@pytest.mark.parametrize("side", SIDES)
def test_arch_reads_cached_samples_borrows_for_the_others_and_projects_both(side: Side) -> None:
    vectors = {
        "encoder": torch.randn(8, 5, generator=seeded(6)),
        "decoder": torch.randn(8, 4, generator=seeded(7)),
    }
    arch = Arch(cache_fraction=0.5, neighbours=2, radius=0.5)
    arch.memory.prepare(corpus(vectors), seed=0, device=torch.device("cpu"))
    cached = arch.memory.cache.ids.tolist()
    found = arch.ball.rescale(perturbation(drawn(cached, seed=8)))
    arch.memory.write(torch.tensor(cached), found, epoch=0)
    recalled = arch.memory.read(torch.tensor(EVERYONE), zeros_for(EVERYONE, side), 1)

    assert len(cached) == 4
    for stream in SIZES:
        theirs = dict(zip(cached, real(found, stream), strict=True))
        for sample, ours in zip(EVERYONE, real(recalled, stream), strict=True):
            if sample in cached:
                torch.testing.assert_close(ours, theirs[sample])
                continue
            closest = [
                cached[at]
                for at in naive_nearest(vectors[stream][sample], vectors[stream][cached], 2)
            ]
            mean = torch.tensor(naive_borrow(len(ours), [theirs[other] for other in closest]))
            torch.testing.assert_close(ours, mean * min(1.0, 0.5 / mean.norm().item()))


def prepared(sizes: Sequence[int]) -> Arch:
    """ARCH of radius 1 that caches half of these samples."""
    arch = Arch(cache_fraction=0.5, radius=1.0)
    vectors = {"tokens": torch.ones(len(sizes), 2)}
    arch.memory.prepare(
        Corpus({"tokens": torch.tensor(sizes)}, {"tokens": 2}, vectors, ""), 0, torch.device("cpu")
    )
    return arch


def test_a_long_sample_that_borrows_from_a_short_one_is_brought_back_into_the_ball() -> None:
    cached = int(prepared([1, 1]).memory.cache.ids)
    arch = prepared([1 if sample == cached else 9 for sample in range(2)])
    on_surface = torch.tensor([[0.6, 0.8]])
    arch.memory.write(torch.tensor([cached]), perturbation([on_surface]), epoch=0)
    recalled = arch.memory.read(torch.tensor([1 - cached]), perturbation([torch.zeros(9, 2)]), 1)
    torch.testing.assert_close(
        real(recalled)[0], on_surface.expand(9, 2) / 3
    )  # nine such rows have norm 3


def test_a_shuffled_batch_borrows_shuffled() -> None:
    cache, _ = filled_cache(CACHED, seed=9)
    index = NeighbourIndex(
        {stream: random_anchors(8, 4, 1, seeded(at)) for at, stream in enumerate(SIZES)}
    )
    straight = index.borrow(torch.tensor(UNCACHED), cache, zeros_for(UNCACHED))
    backwards = index.borrow(torch.tensor(UNCACHED[::-1]), cache, zeros_for(UNCACHED[::-1]))
    for stream in SIZES:
        assert same(real(backwards, stream), real(straight, stream)[::-1])
