"""The bars the suites are held to, and the differences that are wanted."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from peers.compare import Comparison, cause, pass_rate
from peers.records import Outcome

EXPECTED = Path(__file__).resolve().parent / "expected.toml"
LEAST_PASSING = (
    0.95  # of the stock trainer's tests that are not skipped: fewer say little about advreg
)
MOST_DIFFERENT = 4  # tests that fail only with Standard
PLAIN = (
    "standard"  # trains as the stock trainer does: it refuses nothing, and its figures are the same
)

Reasons = dict[str, str]


def expected(file: Path = EXPECTED) -> dict[tuple[str, str], Reasons]:
    """The wanted differences, test by test with a reason, of each suite and method."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        (suite, method): reasons
        for suite, methods in tables.items()
        for method, reasons in methods.items()
    }


def stock_faults(suite: str, outcomes: Mapping[str, Outcome]) -> list[str]:
    """What is wrong with the stock run, which all else is compared with."""
    rate = pass_rate(outcomes)
    if rate >= LEAST_PASSING:
        return []
    return [
        f"{suite}: stock passes {rate:.1%} of what is not skipped, less than {LEAST_PASSING:.0%}"
    ]


def differing(method: str, found: Comparison) -> dict[str, str]:
    """The tests that differ from the stock run where they should not, and how."""
    how = {test: cause(outcome) for test, outcome in found.failed.items()}
    if method == PLAIN:
        how |= {test: cause(outcome) for test, outcome in found.refused.items()}
        how |= {
            training.rpartition(" ")[0]: figure
            for training, figure in found.figures.different.items()
        }
    return how


def faults(suite: str, method: str, found: Comparison, reasons: Reasons) -> list[str]:
    """What is wrong with a method's run."""
    how = differing(method, found)
    unnamed = [test for test in how if test not in reasons]
    stale = [test for test in reasons if test in found.passed and test not in how]
    lost = len(found.failed) + len(found.refused)
    wrong = []
    if not found.trainings:
        wrong.append("no training went through the mixin, so the comparison says nothing")
    if unnamed:
        wrong.append(
            f"tests that differ from stock without a reason in {EXPECTED.name}: {len(unnamed)}"
        )
    if stale:
        wrong.append(
            f"tests of {EXPECTED.name} that no longer differ, to be taken out: {', '.join(stale)}"
        )
    if method == PLAIN and lost > MOST_DIFFERENT:
        wrong.append(f"tests that fail only with it: {lost}, more than {MOST_DIFFERENT}")
    return [f"{suite}, {method}: {what}" for what in wrong]
