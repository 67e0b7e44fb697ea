from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from advreg.hf.lookahead import Ahead
from padded import few

asks = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=8)


@few
@given(size=st.integers(0, 15), history=asks)
def test_looking_ahead_never_changes_what_is_taken(
    size: int, history: list[tuple[int, int]]
) -> None:
    ahead, iterator, plain = Ahead(), iter(range(size)), list(range(size))
    for count, further in history:
        expected, plain = plain[:count], plain[count:]
        assert ahead.take(iterator, count) == expected
        assert ahead.glimpse(further) == plain[:further]


def test_what_was_held_of_one_epoch_is_not_given_to_the_next() -> None:
    ahead, first, second = Ahead(), iter("abcdef"), iter("uvwxyz")
    assert ahead.take(first, 2) == ["a", "b"]
    assert ahead.glimpse(2) == ["c", "d"]
    assert ahead.take(second, 2) == ["u", "v"]
    assert ahead.glimpse(1) == ["w"]


def test_nothing_is_read_that_was_not_asked_for() -> None:
    seen: list[int] = []
    iterator = (seen.append(number) or number for number in range(10))
    ahead = Ahead()
    ahead.take(iterator, 2)
    assert seen == [0, 1]
    ahead.glimpse(2)
    ahead.glimpse(1)
    assert seen == [0, 1, 2, 3]


def test_there_is_nothing_to_see_before_anything_was_taken() -> None:
    assert Ahead().glimpse(3) == []
