from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from advreg.core.ascent import Ascent, ascend
from advreg.core.ball import Ball, Norm, Start
from advreg.core.perturbation import Perturbation
from advreg.core.shard import Shard
from advreg.memory.cache import CacheDtype, PerturbationCache, cache_bytes
from advreg.memory.tiers import Place, Tier
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
CACHED = [6, 1, 4, 3]  # in no order: a slot is not an id
UNCACHED = [0, 2, 5, 7]
EVERYONE = range(8)
WIDE = Ball(1e3)  # nothing lies outside


def make_cache(
    cached: Sequence[int] = CACHED, dtype: CacheDtype = "float32", tier: Tier = "device"
) -> PerturbationCache:
    lengths = {stream: torch.tensor(sizes) for stream, sizes in SIZES.items()}
    return PerturbationCache(
        torch.tensor(cached), len(EVERYONE), lengths, WIDTHS, dtype, Place(tier=tier)
    )


def drawn(ids: Sequence[int], seed: int, scale: float = 1.0) -> dict[str, list[Tensor]]:
    """A Δ for each of these samples, of its length in each stream."""
    return {
        stream: random_samples(
            [sizes[sample] for sample in ids], seed + len(stream), WIDTHS[stream], scale
        )
        for stream, sizes in SIZES.items()
    }


def zeros_for(ids: Sequence[int], side: Side = "right", extra: int = 0) -> Perturbation:
    return perturbation(
        {s: [torch.zeros_like(row) for row in rows] for s, rows in drawn(ids, 0).items()},
        side,
        extra,
    )


def write(
    cache: PerturbationCache,
    ids: Sequence[int],
    rows: dict[str, list[Tensor]],
    ema: float = 0.5,
    epoch: int = 0,
) -> Perturbation:
    return cache.write(torch.tensor(ids), perturbation(rows), ema, WIDE, epoch)


def read(
    cache: PerturbationCache, ids: Sequence[int], stream: str, side: Side = "right"
) -> list[Tensor]:
    return real(cache.read(torch.tensor(ids), zeros_for(ids, side)), stream)


def snapshot(cache: PerturbationCache) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in cache.state_dict().items()}


def unchanged(cache: PerturbationCache, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in cache.state_dict().items())


@dataclass
class NaiveCache:
    """What the cache has to do, as a dictionary of sentences."""

    cached: Sequence[int]
    ema: float
    radius: float
    rows: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def write(self, sample: int, stream: str, delta: Tensor) -> Tensor:
        if sample not in self.cached:
            return delta
        old = self.rows.get((stream, sample))
        if old is not None:
            delta = self.ema * old + (1 - self.ema) * delta
            delta = delta * min(1.0, self.radius / delta.norm().item())
        self.rows[stream, sample] = delta
        return delta

    def read(self, sample: int, stream: str) -> Tensor:
        nothing = torch.zeros(SIZES[stream][sample], WIDTHS[stream])
        return self.rows.get((stream, sample), nothing)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[int], Side, int]]:
    """A few batches of different samples, each with a padding side and a surplus of padding."""
    batch = st.lists(st.sampled_from(list(EVERYONE)), min_size=1, max_size=5, unique=True)
    return draw(st.lists(st.tuples(batch, sides, st.integers(0, 3)), min_size=1, max_size=5))


TIERS = get_args(Tier)


@pytest.mark.parametrize("tier", TIERS)
@few
@given(history=batches(), seed=seeds, ema=st.floats(0, 0.99), radius=st.floats(0.5, 3))
def test_any_sequence_of_writes_and_reads_is_that_of_a_dictionary_of_sentences(
    tier: Tier, history: list[tuple[list[int], Side, int]], seed: int, ema: float, radius: float
) -> None:
    cache, naive, ball = make_cache(tier=tier), NaiveCache(CACHED, ema, radius), Ball(radius)
    for epoch, (ids, side, extra) in enumerate(history):
        found = ball.project(perturbation(drawn(ids, seed + epoch), side, extra))
        trained = cache.write(torch.tensor(ids), found, ema, ball, epoch)
        for stream in SIZES:
            expected = [
                naive.write(i, stream, row) for i, row in zip(ids, real(found, stream), strict=True)
            ]
            torch.testing.assert_close(real(trained, stream), expected)
        for _, other_side, other_extra in history:
            recalled = cache.read(
                torch.tensor(EVERYONE), zeros_for(EVERYONE, other_side, other_extra)
            )
            assert not on_padding(recalled).any()
            for stream in SIZES:
                expected = [naive.read(sample, stream) for sample in EVERYONE]
                torch.testing.assert_close(real(recalled, stream), expected)


def test_what_is_cached_is_delta_itself_and_not_how_far_the_ascent_went() -> None:
    cache, ids = make_cache(), torch.tensor(CACHED)
    start = Start("uniform").draw(zeros_for(CACHED), Ball(0.5))
    slope = perturbation(drawn(CACHED, seed=1))
    objective = lambda delta: sum((slope.values[s] * delta.values[s]).sum() for s in SIZES)  # noqa: E731
    found = ascend(objective, start, Ascent(2, 0.01), Ball(0.5))
    cache.write(ids, found, 0.01, Ball(0.5), epoch=0)
    for stream in SIZES:
        recalled = read(cache, CACHED, stream)
        assert same(recalled, real(found, stream))
        assert all(
            row.norm() > 0.45 for row in recalled
        )  # the way from the start is at most 0.02 long


@pytest.mark.parametrize("ema", [0.0, 0.01, 0.9])
def test_the_first_write_is_stored_as_it_is_however_large_the_moving_average(ema: float) -> None:
    cache, rows = make_cache(), drawn(CACHED, seed=2)
    trained = write(cache, CACHED, rows, ema)
    for stream in SIZES:
        assert same(read(cache, CACHED, stream), rows[stream])
        assert same(real(trained, stream), rows[stream])


def test_a_sample_written_for_the_first_time_beside_an_old_one_is_not_shrunk_either() -> None:
    cache, first, second = make_cache(), drawn([1], seed=3), drawn([4, 1], seed=4)
    write(cache, [1], first)
    write(cache, [4, 1], second, ema=0.25)
    new, old = read(cache, [4, 1], "encoder")
    assert torch.equal(new, second["encoder"][0])
    torch.testing.assert_close(old, 0.25 * first["encoder"][0] + 0.75 * second["encoder"][1])


def test_the_moving_average_is_weighted_towards_the_new_by_one_minus_ema() -> None:
    cache, first, second, third = make_cache(), *(drawn(CACHED, seed) for seed in (5, 6, 7))
    write(cache, CACHED, first, ema=0.2)
    write(cache, CACHED, second, ema=0.2)
    trained = write(cache, CACHED, third, ema=0.2)
    for stream in SIZES:
        expected = [
            0.2 * (0.2 * a + 0.8 * b) + 0.8 * c
            for a, b, c in zip(first[stream], second[stream], third[stream], strict=True)
        ]
        torch.testing.assert_close(read(cache, CACHED, stream), expected)
        assert same(real(trained, stream), read(cache, CACHED, stream))


def test_the_average_is_projected_back_into_the_ball_before_it_is_stored_and_trained_on() -> None:
    cache, ids = make_cache(), torch.tensor(CACHED)
    for epoch, ball in enumerate((Ball(1e3), Ball(0.1))):
        trained = cache.write(ids, perturbation(drawn(CACHED, seed=8, scale=5.0)), 0.5, ball, epoch)
    for stream in SIZES:
        for rows in (real(trained, stream), read(cache, CACHED, stream)):
            assert [row.norm().item() for row in rows] == pytest.approx([0.1] * 4)


def test_an_uncached_sample_trains_on_its_own_delta_and_leaves_no_trace() -> None:
    cache, rows = make_cache(), drawn(EVERYONE, seed=9)
    write(cache, CACHED, drawn(CACHED, seed=10))
    before = snapshot(cache)
    trained = write(cache, UNCACHED, drawn(UNCACHED, seed=11), ema=0.9, epoch=3)
    assert unchanged(cache, before)
    for stream in SIZES:
        assert same(real(trained, stream), drawn(UNCACHED, seed=11)[stream])
    write(cache, list(EVERYONE), rows)
    for stream in SIZES:
        assert not any(row.any() for row in read(cache, UNCACHED, stream))


def test_cached_rows_follow_the_batch_when_it_is_shuffled() -> None:
    cache, rows = make_cache(), drawn(CACHED, seed=12)
    write(cache, CACHED, rows)
    order = [2, 0, 3, 1]
    shuffled = [CACHED[at] for at in order]
    for stream in SIZES:
        assert same(read(cache, shuffled, stream), [rows[stream][at] for at in order])
        assert same(read(cache, [shuffled[2]], stream), [rows[stream][order[2]]])


def test_a_shuffled_second_write_is_averaged_with_the_same_samples_rows() -> None:
    cache, first = make_cache(), drawn(CACHED, seed=13)
    write(cache, CACHED, first)
    backwards = {stream: rows[::-1] for stream, rows in first.items()}
    write(cache, CACHED[::-1], backwards, ema=0.3)  # the average of a row with itself is the row
    for stream in SIZES:
        torch.testing.assert_close(read(cache, CACHED, stream), first[stream])


@pytest.mark.parametrize("written", SIDES)
@pytest.mark.parametrize("wanted", SIDES)
@pytest.mark.parametrize("extra", [0, 4])
def test_left_and_right_padding_agree(written: Side, wanted: Side, extra: int) -> None:
    cache, rows = make_cache(), drawn(CACHED, seed=14)
    cache.write(torch.tensor(CACHED), perturbation(rows, written, extra), 0.5, WIDE, epoch=0)
    recalled = cache.read(torch.tensor(CACHED), zeros_for(CACHED, wanted, 4 - extra))
    for stream in SIZES:
        assert same(real(recalled, stream), rows[stream])
    assert not on_padding(recalled).any()


def test_the_k_th_real_token_gets_the_k_th_row_across_a_hole_in_the_mask() -> None:
    cache = PerturbationCache(torch.tensor([0]), 1, {"tokens": torch.tensor([2])}, {"tokens": 1})
    cache.write(torch.tensor([0]), perturbation([torch.tensor([[1.0], [2.0]])]), 0.0, WIDE, epoch=0)
    holes = Perturbation(
        {"tokens": torch.zeros(1, 4, 1)}, {"tokens": torch.tensor([[False, True, False, True]])}
    )
    assert cache.read(torch.tensor([0]), holes).values["tokens"].flatten().tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("stream", ["encoder", "decoder"])
@pytest.mark.parametrize("epoch", [0, 5])
def test_a_delta_that_is_not_finite_is_refused_and_nothing_of_its_batch_is_cached(
    junk: float, stream: str, epoch: int
) -> None:
    cache, rows = make_cache(), drawn(CACHED, seed=15)
    if epoch > 0:
        write(cache, CACHED, drawn(CACHED, seed=16))
    before = snapshot(cache)
    rows[stream][2][-1, 0] = junk
    with pytest.raises(
        FloatingPointError,
        match=rf"stream '{stream}' is not finite in torch.float32 for sample ids \[4\]",
    ):
        write(cache, CACHED, rows, epoch=epoch)
    assert unchanged(cache, before)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_delta_outside_its_ball_is_refused_and_nothing_of_its_batch_is_cached(norm: Norm) -> None:
    cache, ball = make_cache(), Ball(0.5, norm, "token")
    rows = drawn(CACHED, seed=18, scale=1e-3)
    before = snapshot(cache)
    rows["decoder"][1][0, 0] = 0.51
    with pytest.raises(
        ValueError,
        match=rf"sample ids \[1\] is outside the ball of radius 0.5 \({norm} per token\); nothing was",
    ):
        cache.write(torch.tensor(CACHED), perturbation(rows), 0.0, ball, 0)
    assert unchanged(cache, before)
    rows["decoder"][1][0, 0] = 0.49
    cache.write(torch.tensor(CACHED), perturbation(rows), 0.0, ball, 0)


def test_a_delta_that_would_overflow_in_float16_is_refused_before_it_becomes_infinite() -> None:
    cache, rows = make_cache(dtype="float16"), drawn(CACHED, seed=17)
    before = snapshot(cache)
    rows["encoder"][1][0, 0] = 7e4
    with pytest.raises(
        FloatingPointError,
        match=r"not finite in torch.float16 for sample ids \[1\]; nothing was cached",
    ):
        cache.write(torch.tensor(CACHED), perturbation(rows), 0.5, Ball(1e6), epoch=0)
    assert unchanged(cache, before)


@few
@given(seeds, st.sampled_from([1e-6, 1e-4, 0.1, 10.0]))
def test_float16_storage_errs_by_half_a_unit_in_the_last_place_at_most(
    seed: int, scale: float
) -> None:
    cache, rows = make_cache(dtype="float16"), drawn(CACHED, seed, scale)
    trained = write(cache, CACHED, rows)
    for stream in SIZES:
        assert same(real(trained, stream), rows[stream])  # what is trained on is not rounded
        for stored, exact in zip(read(cache, CACHED, stream), rows[stream], strict=True):
            assert stored.dtype == torch.float32
            bound = (exact.abs() * 2**-11).clamp_min(
                2**-25
            )  # 11 significant bits; below 2⁻¹⁴, steps of 2⁻²⁴
            assert bool(((stored - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@few
@given(history=batches(), seed=seeds)
def test_the_means_beside_the_rows_are_the_means_of_what_is_stored(
    dtype: CacheDtype, history: list[tuple[list[int], Side, int]], seed: int
) -> None:
    cache = make_cache(dtype=dtype)
    for epoch, (ids, side, extra) in enumerate(history):
        cache.write(
            torch.tensor(ids), perturbation(drawn(ids, seed + epoch), side, extra), 0.3, WIDE, epoch
        )
    for stream in SIZES:
        for slot, rows in enumerate(read(cache, CACHED, stream)):
            expected = [math.fsum(column) / len(column) for column in rows.T.tolist()]
            assert cache.means(stream, torch.tensor(slot)).tolist() == pytest.approx(
                expected, abs=1e-6
            )


def test_a_sample_that_stands_twice_in_a_batch_keeps_one_of_its_deltas_and_the_mean_of_that_one() -> (
    None
):
    cache = make_cache()
    one, two = (drawn([4], seed)["encoder"][0] for seed in (18, 19))
    write(cache, [4, 4], {"encoder": [one, two], "decoder": drawn([4, 4], seed=20)["decoder"]})
    kept = read(cache, [4], "encoder")[0]
    assert torch.equal(kept, one) or torch.equal(kept, two)
    torch.testing.assert_close(cache.means("encoder", torch.tensor(CACHED.index(4))), kept.mean(0))


def test_a_batch_in_double_precision_is_read_back_in_double_precision() -> None:
    cache = make_cache()
    doubles = {
        stream: [row.double() for row in rows] for stream, rows in drawn(CACHED, seed=21).items()
    }
    write(cache, CACHED, doubles)
    recalled = cache.read(torch.tensor(CACHED), perturbation(doubles))
    assert recalled.values["encoder"].dtype == torch.float64


@pytest.mark.parametrize("outside", [8, 812, -1])
def test_an_id_outside_the_prepared_data_is_named(outside: int) -> None:
    cache, ids = make_cache(), torch.tensor([1, outside])
    like = perturbation(drawn([1, 3], seed=22))
    message = rf"sample id {outside} is not in the data the method was prepared with \(0–7\); was the dataset changed"
    with pytest.raises(IndexError, match=message):
        cache.read(ids, like)
    before = snapshot(cache)
    with pytest.raises(IndexError, match=message):
        cache.write(ids, like, 0.5, WIDE, epoch=0)
    assert unchanged(cache, before)
    with pytest.raises(IndexError, match=message):
        cache.find(ids, like)


@pytest.mark.parametrize(("stranger", "lookalike"), [(8, 7), (-1, 0), (100, 7)])
def test_an_id_outside_the_data_is_found_out_though_the_sample_nearest_to_it_is_as_long(
    stranger: int, lookalike: int
) -> None:
    with pytest.raises(IndexError, match=f"sample id {stranger} is not in the data"):
        make_cache().read(torch.tensor([stranger]), zeros_for([lookalike]))


def test_a_sample_of_another_process_is_found_out_though_its_neighbour_here_is_as_long() -> None:
    lengths = {"tokens": torch.tensor([2, 2, 2])}
    cache = PerturbationCache(
        torch.tensor([1, 5]), Shard(6, rank=1, world=2), lengths, {"tokens": 3}
    )
    blank = perturbation({"tokens": [torch.zeros(2, 3)]}, "right", 0)
    cache.find(torch.tensor([5]), blank)
    with pytest.raises(
        IndexError, match="sample id 4 belongs to process 0 of 2, but came to process 1"
    ):
        cache.find(torch.tensor([4]), blank)


@pytest.mark.parametrize("sample", [4, 0])  # cached and not cached
def test_a_sample_whose_length_changed_is_named_with_both_lengths(sample: int) -> None:
    cache, rows = make_cache(), drawn([1, sample], seed=23)
    then = SIZES["decoder"][sample]
    rows["decoder"][1] = torch.zeros(then + 1, 2)
    before = snapshot(cache)
    message = rf"sample id {sample} has {then + 1} tokens in stream 'decoder', but had {then} when the method was prepared"
    with pytest.raises(ValueError, match=message):
        cache.read(torch.tensor([1, sample]), perturbation(rows))
    with pytest.raises(ValueError, match=message):
        write(cache, [1, sample], rows)
    assert unchanged(cache, before)


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_the_bytes_are_those_of_all_tokens_and_of_an_epoch_and_a_float32_mean_for_each_sample(
    dtype: CacheDtype, width: int
) -> None:
    """Each kind has one entry more, for what is not cached."""
    expected = (len(CACHED) + 1) * 8
    for stream, sizes in SIZES.items():
        tokens = sum(sizes[sample] for sample in CACHED)
        expected += (tokens + 1) * WIDTHS[stream] * width
        expected += (len(CACHED) + 1) * WIDTHS[stream] * 4
    assert make_cache(dtype=dtype).nbytes == expected


def test_samples_that_were_written_have_an_epoch() -> None:
    cache = make_cache()
    assert (cache.written_at == -1).all()
    write(cache, [1, 0, 3], drawn([1, 0, 3], seed=24), epoch=2)
    assert cache.ids[cache.written_at == 2].sort().values.tolist() == [1, 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_saved_cache_is_loaded_bit_for_bit_and_continues_as_if_never_stopped(
    dtype: CacheDtype,
) -> None:
    cache, resumed = make_cache(dtype=dtype), make_cache(dtype=dtype)
    write(cache, [1, 4, 0], drawn([1, 4, 0], seed=27), epoch=0)
    resumed.load_state_dict(snapshot(cache))
    assert unchanged(resumed, snapshot(cache))
    for stream in SIZES:
        assert same(read(resumed, CACHED, stream), read(cache, CACHED, stream))

    following = drawn(CACHED, seed=28)
    trained = [write(one, CACHED, following, ema=0.4, epoch=15) for one in (cache, resumed)]
    assert all(
        torch.equal(trained[0].values[stream], trained[1].values[stream]) for stream in SIZES
    )
    assert unchanged(resumed, snapshot(cache))


def test_a_loaded_cache_shares_no_memory_with_what_was_loaded() -> None:
    cache, resumed = make_cache(), make_cache()
    write(cache, CACHED, drawn(CACHED, seed=29))
    resumed.load_state_dict(cache.state_dict())
    before = snapshot(resumed)
    write(cache, CACHED, drawn(CACHED, seed=30))
    assert unchanged(resumed, before)


def other_lengths() -> PerturbationCache:
    """As many tokens in all, but samples 1 and 4 have swapped theirs."""
    lengths = {stream: torch.tensor(sizes) for stream, sizes in SIZES.items()}
    lengths["decoder"][[1, 4]] = lengths["decoder"][[4, 1]]
    return PerturbationCache(torch.tensor(CACHED), 8, lengths, WIDTHS)


def one_stream() -> PerturbationCache:
    return PerturbationCache(
        torch.tensor(CACHED), 8, {"encoder": torch.tensor(SIZES["encoder"])}, WIDTHS
    )


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            make_cache([1, 6, 4, 3]),
            "saved cache's ids differ from this run's; resume with the same data and seed",
        ),
        (
            make_cache([6, 1, 4]),
            r"saved cache's ids is \(3,\) of torch.int64, this run needs \(4,\)",
        ),
        (other_lengths(), "saved cache's decoder.lengths differ from this run's"),
        (
            make_cache(dtype="float16"),
            "encoder.rows is .* of torch.float16, this run needs .* of torch.float32",
        ),
        (one_stream(), r"saved cache holds .* this one .*decoder.*; is it another model's\?"),
    ],
    ids=["other ids", "fewer ids", "other lengths", "other dtype", "a stream less"],
)
def test_a_saved_cache_that_belongs_to_another_run_is_refused_and_nothing_is_taken_over(
    saved: PerturbationCache, message: str
) -> None:
    cache = make_cache()
    write(cache, CACHED, drawn(CACHED, seed=31), epoch=2)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.load_state_dict(saved.state_dict())
    assert unchanged(cache, before)


@pytest.mark.parametrize(
    "name", ["ids", "written_at", "encoder.rows", "means.decoder", "decoder.lengths"]
)
def test_a_saved_cache_with_a_missing_entry_is_refused(name: str) -> None:
    state = snapshot(make_cache())
    del state[name]
    with pytest.raises(ValueError, match="the saved cache holds"):
        make_cache().load_state_dict(state)


DTYPES = get_args(CacheDtype)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(history=batches(), seed=seeds, foresight=st.booleans())
def test_every_tier_gives_the_same_bits_whether_or_not_it_knew_what_comes_next(
    dtype: CacheDtype, history: list[tuple[list[int], Side, int]], seed: int, foresight: bool
) -> None:
    caches = [make_cache(dtype=dtype, tier=tier) for tier in TIERS]
    for epoch, (ids, side, extra) in enumerate(history):
        found = Ball(2.0).project(perturbation(drawn(ids, seed + epoch), side, extra))
        for cache in caches:
            if foresight:
                cache.prefetch(torch.tensor(EVERYONE))
                cache.prefetch(torch.tensor(ids))
            cache.write(torch.tensor(ids), found, 0.3, Ball(2.0), epoch)
        near, *others = [
            cache.read(torch.tensor(EVERYONE), zeros_for(EVERYONE, side, extra)) for cache in caches
        ]
        for other in others:
            assert all(torch.equal(near.values[stream], other.values[stream]) for stream in SIZES)
    for cache in caches[1:]:
        assert unchanged(cache, snapshot(caches[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds, radius=st.sampled_from([1e-5, 0.1, 1.0]), norm=st.sampled_from(["l2", "linf"]))
def test_a_delta_inside_the_ball_is_inside_after_it_was_stored_decoded_and_projected(
    dtype: CacheDtype, seed: int, radius: float, norm: Norm
) -> None:
    cache, ball = make_cache(dtype=dtype), Ball(radius, norm, "sample")
    delta = ball.rescale(perturbation(drawn(CACHED, seed)))
    cache.write(torch.tensor(CACHED), delta, 0.5, ball, epoch=0)
    recalled = cache.read(torch.tensor(CACHED), delta)
    assert ball.contains(recalled, tolerance=0.01)  # what rounding alone can do
    assert ball.contains(ball.project(recalled))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_are_known_before_the_cache_is_made(dtype: CacheDtype) -> None:
    tokens = {stream: sum(sizes[sample] for sample in CACHED) for stream, sizes in SIZES.items()}
    assert cache_bytes(tokens, len(CACHED), WIDTHS, dtype) == make_cache(dtype=dtype).nbytes


def test_slots_that_were_found_are_read_without_being_looked_up_again() -> None:
    cache, rows = make_cache(), drawn(CACHED, seed=33)
    write(cache, CACHED, rows)
    ids, like = torch.tensor(CACHED), zeros_for(CACHED)
    slots = cache.find(ids, like)
    assert slots.tolist() == [0, 1, 2, 3]
    for stream in SIZES:
        assert same(real(cache.read(ids, like, slots), stream), rows[stream])


# ---- one of many processes


def test_a_process_without_a_cached_sample_keeps_what_it_found_and_reads_zeros() -> None:
    shard = Shard(12, 3, 6)  # samples 3 and 9
    none = torch.tensor([], dtype=torch.int64)
    cache = PerturbationCache(none, shard, {"tokens": torch.tensor([2, 2])}, {"tokens": 2})
    delta = perturbation([torch.ones(2, 2)])
    assert cache.write(torch.tensor([9]), delta, 0.5, Ball(100.0), 0) is delta
    assert not cache.read(torch.tensor([9]), delta).values["tokens"].any()
    assert cache.written_at.tolist() == []


@pytest.mark.parametrize("tier", ["device", "disk"])
def test_a_process_s_samples_are_found_by_their_ids_in_the_whole_data(tier: Tier) -> None:
    shard = Shard(11, 2, 3)  # samples 2, 5 and 8
    lengths = {"tokens": torch.tensor([1, 2, 3])}
    cache = PerturbationCache(
        torch.tensor([2, 8]), shard, lengths, {"tokens": 2}, place=Place(tier=tier)
    )
    delta = perturbation([torch.full((size, 2), float(size)) for size in (3, 2, 1)])
    cache.write(torch.tensor([8, 5, 2]), delta, 0.5, Ball(100.0), 4)
    found = cache.read(torch.tensor([2, 8]), perturbation([torch.zeros(1, 2), torch.zeros(3, 2)]))
    assert same(real(found), [torch.ones(1, 2), torch.full((3, 2), 3.0)])
    assert cache.state_dict()["ids"].tolist() == [2, 8]


# ---- without waiting for a GPU


class Waits(TorchDispatchMode):
    """Counts what the host would wait for a GPU for: values, and how many entries a mask picks."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        aten = torch.ops.aten
        picks = function in (aten.index.Tensor, aten.index_put_.default) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += picks or function in (aten._local_scalar_dense.default, aten.nonzero.default)
        return function(*args, **(kwargs or {}))


def test_a_write_waits_three_times_however_many_streams_there_are() -> None:
    """For whether the batch is what it was, whether all is sound, and who is cached."""
    cache, found = make_cache(), perturbation(drawn(EVERYONE, seed=1))
    with Waits() as waits:
        cache.write(torch.arange(8), found, 0.5, WIDE, epoch=0)
    assert waits.count == 3


@pytest.mark.parametrize("dtype", get_args(CacheDtype))
def test_what_padding_writes_is_wiped_off(dtype: CacheDtype) -> None:
    cache = make_cache(dtype=dtype)
    cache.write(
        torch.tensor(CACHED),
        perturbation(drawn(CACHED, seed=1), "left", extra=3),
        0.5,
        WIDE,
        epoch=0,
    )
    for store in cache._store.values():
        assert all(not part[-1].any() for part in store.rows.values())
        assert any(part[:-1].any() for part in store.rows.values())
