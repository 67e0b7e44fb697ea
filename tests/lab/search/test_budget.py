from __future__ import annotations

import pytest

from advreg.lab.search.budget import Budget


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", Budget(seconds=5400)),
        ("1.5 h", Budget(seconds=5400)),
        ("45s", Budget(seconds=45)),
        ("2d", Budget(seconds=172_800)),
        ("40", Budget(runs=40)),
        ("1 run", Budget(runs=1)),
    ],
)
def test_a_budget_is_a_time_or_a_number_of_runs(text: str, expected: Budget) -> None:
    assert Budget.parse(text) == expected


@pytest.mark.parametrize("text", ["", "h", "0", "-2h", "2 weeks", "1.5", "1.2.3h", "1.5 runs"])
def test_another_budget_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"budget must be a time \(90m, 2h, 1d\) or a number"):
        Budget.parse(text)


def test_a_budget_allows_what_stays_within_it() -> None:
    assert Budget(seconds=60).allows(60, 10_000)
    assert not Budget(seconds=60).allows(61, 0)
    assert Budget(runs=5).allows(1e9, 5)
    assert not Budget(runs=5).allows(0, 6)
