from __future__ import annotations

from typing import Any

import pytest

from advreg.lab.search.conclusion import conclusion
from advreg.lab.search.sequential import Look, Looks
from advreg.records.compare import MethodGain


def gain(method: str, mean: float, verdict: str, **more: Any) -> MethodGain:
    return MethodGain(method=method, task="files", seeds=5, mean=mean, verdict=verdict, **more)


def sentence(*gains: MethodGain, **more: Any) -> str:
    given: dict[str, Any] = {
        "looks": {
            each.method: Looks([Look(5, each.mean or 0.0, 1.0, more.pop("sampling", 0.0))], 5)
            for each in gains
        },
        "chosen": {},
        "margin": 0.1,
        "level": 0.05,
        "tuned": True,
        **more,
    }
    return conclusion("standard", gains, **given)


def test_the_method_that_pays_most_is_named_with_its_options_gain_and_price() -> None:
    found = sentence(
        gain("arch", 0.9, "pays", low=0.2, high=1.6, time=2.9),
        gain("rdrop", 1.2, "pays", low=0.4, high=2.0, time=1.04),
        gain("r3f", 5.0, "undecided"),
        chosen={"rdrop": {"weight": 1.0, "start_at": 0.5}},
    )
    assert found == "use R-Drop, λ = 1, start_at = 0.5: +1.2 [0.4, 2.0] at 1.04 × the time"


@pytest.mark.parametrize(
    ("gains", "more", "expected"),
    [
        ([("arch", -1.0, "does not pay")], {}, "nothing beats tuned Standard"),
        ([("arch", -1.0, "does not pay")], {"tuned": False}, "nothing beats Standard"),
        (
            [("arch", 0.5, "undecided"), ("r3f", 0.2, "undecided")],
            {},
            "nothing beats tuned Standard; ARCH is undecided at +0.5; 13 more seeds would show ±0.5",
        ),
        (
            [("arch", -0.5, "undecided")],
            {},
            "nothing beats tuned Standard; ARCH is undecided at −0.5; 13 more seeds would show ±0.5",
        ),
        (
            [("arch", 0.5, "undecided")],
            {"sampling": 2.0},
            "nothing beats tuned Standard; ARCH is undecided at +0.5, and a test set of this size "
            "shows ±3.9 at best",
        ),
        (
            [("arch", 0.02, "undecided")],
            {"margin": 0.0},
            "nothing beats tuned Standard; ARCH is undecided at +0.0; 382 more seeds would show ±0.1",
        ),
        (
            [("arch", 0.5, "undecided")],
            {"looks": {}},
            "nothing beats tuned Standard; there are too few runs for a verdict",
        ),
    ],
)
def test_where_nothing_pays_it_says_what_would_decide(
    gains: list[tuple[str, float, str]], more: dict[str, Any], expected: str
) -> None:
    assert sentence(*(gain(*each) for each in gains), **more) == expected


def test_methods_with_failed_runs_are_named_as_undecided() -> None:
    found = sentence(gain("arch", 3.0, "undecided", flaw="seed 2 of files is missing: OOM"))
    assert found == (
        "nothing beats tuned Standard; ARCH is undecided: seed 2 of files is missing: OOM"
    )
