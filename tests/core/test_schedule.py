from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.schedule import Clock, Onset, RefreshEvery


def refreshes(every: int | None, epochs: int) -> list[int]:
    return [epoch for epoch in range(epochs) if RefreshEvery(every).due(epoch)]


def test_a_run_of_150_epochs_refreshed_every_15_refreshes_ten_times_and_first_at_zero() -> None:
    assert refreshes(15, 150) == [0, 15, 30, 45, 60, 75, 90, 105, 120, 135]


def test_none_refreshes_once_at_epoch_zero() -> None:
    assert refreshes(None, 150) == [0]


def test_one_refreshes_every_epoch() -> None:
    assert refreshes(1, 4) == [0, 1, 2, 3]


@given(st.integers(1, 40), st.integers(1, 200))
def test_refreshes_begin_at_zero_and_are_evenly_apart(every: int, epochs: int) -> None:
    found = refreshes(every, epochs)
    assert found == [every * number for number in range(math.ceil(epochs / every))]


@given(st.none() | st.integers(1, 20), st.integers(0, 30), st.integers(0, 60))
def test_an_empty_memory_refreshes_until_it_has_seen_an_epoch_and_then_as_one_that_was_full(
    every: int | None, begin: int, epoch: int
) -> None:
    late, usual = RefreshEvery(every, begin), RefreshEvery(every)
    assert late.due(epoch) == (epoch <= begin or usual.due(epoch))
    refreshed = [earlier for earlier in range(epoch + 1) if late.due(earlier)]
    assert late.last(epoch) == refreshed[-1]


@pytest.mark.parametrize("every", [0, -15, 1.5])
def test_a_gap_that_is_no_whole_number_of_epochs_is_refused(every: float) -> None:
    with pytest.raises(
        ValueError, match=rf"refresh_every must be a whole number of 1 or more, .* got {every}"
    ):
        RefreshEvery(every)  # type: ignore[arg-type]


# ---- when a penalty sets in


def weights(onset: Onset, weight: float = 4.0, planned: int = 100) -> list[float]:
    return [onset.weight(weight, Clock(0, step, planned=planned)) for step in range(planned + 1)]


def test_without_an_onset_the_weight_is_what_it_is_and_no_plan_is_needed() -> None:
    assert Onset().weight(4.0, Clock(0, 7)) == 4.0
    assert Onset().begun(Clock(0, 0))


def test_before_its_start_the_weight_is_zero_and_from_there_constant() -> None:
    assert weights(Onset(0.25)) == [0.0] * 25 + [4.0] * 76


def test_a_linear_weight_rises_from_the_start_to_the_end_of_the_plan() -> None:
    found = weights(Onset(0.5, "linear"))
    assert found[:51] == [0.0] * 51
    assert found[75] == pytest.approx(2.0)
    assert found[100] == pytest.approx(4.0)


def test_a_run_that_goes_on_after_its_plan_keeps_the_last_weight() -> None:
    assert Onset(0.5, "linear").weight(4.0, Clock(9, 150, planned=100)) == pytest.approx(4.0)


@pytest.mark.parametrize("onset", [Onset(0.5), Onset(ramp="linear")])
def test_an_onset_without_a_plan_says_how_to_give_one(onset: Onset) -> None:
    with pytest.raises(
        ValueError,
        match=r"start_at and ramp need the number of planned updates; pass Clock\(epoch, step,",
    ):
        onset.weight(1.0, Clock(0, 0))


def test_an_onset_refuses_bad_values() -> None:
    with pytest.raises(ValueError, match="start_at must be at least 0 and below 1, got 1"):
        Onset(1.0)
    with pytest.raises(ValueError, match="ramp must be one of constant, linear, got 'cosine'"):
        Onset(ramp="cosine")  # type: ignore[arg-type]
