import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.checks import (
    check_choice,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)


def test_a_choice_that_is_not_offered_is_refused_with_the_choices():
    check_choice("norm", "l2", ("l2", "linf"))
    with pytest.raises(ValueError, match="norm must be one of l2, linf, got 'l1'"):
        check_choice("norm", "l1", ("l2", "linf"))


@pytest.mark.parametrize("value", [0, 2.0, 2.5, True, "3", None, math.nan])
def test_only_whole_numbers_that_are_large_enough_pass(value):
    check_whole("replays", 1, least=1)
    with pytest.raises(ValueError, match="replays must be a whole number of 1 or more, got "):
        check_whole("replays", value, least=1)


@given(st.floats())
def test_signs_and_infinities_are_told_apart(value):
    fine = math.isfinite(value)
    for check, passes in (
        (check_not_negative, fine and value >= 0),
        (check_positive, fine and value > 0),
        (check_share, fine and 0 <= value < 1),
    ):
        if passes:
            check("x", value)
        else:
            with pytest.raises(ValueError, match="x must be "):
                check("x", value)
