from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.schedule import RefreshEvery


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
    with pytest.raises(ValueError, match=rf"refresh_every must be a whole number of 1 or more, .* got {every}"):
        RefreshEvery(every)  # type: ignore[arg-type]
