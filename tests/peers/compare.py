"""Compare a run with a method to the stock run."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peers.records import FAILED, PASSED, SKIPPED, Outcome, Run, Training, Trainings

CLOSE = 1e-6  # relative difference of figures that is rounding
LONGEST = 200  # characters of a message

_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?<![\w.])(?:/[\w.@+=-]+){2,}"), "<path>"),
    (re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)"), "N"),
)


@dataclass(frozen=True)
class Figures:
    """The trainings that both runs recorded.

    Args:
        equal: logs and weights are the same.
        close: they differ by no more than rounding.
        different: of each other training what differs, by test and number.
        extra: keys that only the logs with the method have, with the number of trainings.
        lost: keys that only the stock logs have.
    """

    equal: int = 0
    close: int = 0
    different: dict[str, str] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A method compared with the stock trainer.

    Args:
        passed: tests that pass with both.
        refused: tests that pass with stock and end in advreg's refusal before an update was begun.
        failed: the other tests that pass with stock and not with the method, with their outcome.
        gained: tests that only the method passes.
        trainings: trainings with the method that made updates.
        figures: the trainings both recorded.
    """

    passed: list[str]
    refused: dict[str, Outcome]
    failed: dict[str, Outcome]
    gained: list[str]
    trainings: int
    figures: Figures


def counts(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    """How many tests passed, failed and were skipped."""
    found = Counter(outcome.outcome for outcome in outcomes.values())
    return {outcome: found[outcome] for outcome in (PASSED, FAILED, SKIPPED)}


def pass_rate(outcomes: Mapping[str, Outcome]) -> float:
    """The share of passed tests, skipped ones left out."""
    count = counts(outcomes)
    return count[PASSED] / max(1, count[PASSED] + count[FAILED])


def compare(stock: Run, other: Run, method: str) -> Comparison:
    """Compare a method's run with the stock run."""
    passing = _passing(stock)
    lost = {test: other.outcomes.get(test, Outcome(test, FAILED, "not run")) for test in passing}
    lost = {test: outcome for test, outcome in lost.items() if outcome.outcome != PASSED}
    trainings = other.trainings.values()
    begun = {training.test for training in trainings if training.error and training.begun}
    refused = {
        test: outcome for test, outcome in lost.items() if outcome.refused and test not in begun
    }
    return Comparison(
        passed=[test for test in passing if test not in lost],
        refused=refused,
        failed={test: outcome for test, outcome in lost.items() if test not in refused},
        gained=[test for test in _passing(other) if test in stock.outcomes and test not in passing],
        trainings=sum(training.method == method and training.steps > 0 for training in trainings),
        figures=figures(stock.trainings, other.trainings),
    )


def _passing(run: Run) -> list[str]:
    return [test for test, outcome in run.outcomes.items() if outcome.outcome == PASSED]


def cause(outcome: Outcome) -> str:
    """What failures of one cause have in common: the message without what varies, and the place in
    advreg.
    """
    message = _constant(outcome.message)
    message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    return f"{message} [{outcome.place}]" if outcome.place else message


def _constant(message: str) -> str:
    """A message without numbers, addresses and folders."""
    for pattern, name in _VARYING:
        message = pattern.sub(name, message)
    return message


def grouped(outcomes: Iterable[Outcome]) -> dict[str, list[str]]:
    """Tests by cause, the most frequent cause first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        groups[cause(outcome)].append(outcome.test)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def figures(stock: Trainings, other: Trainings) -> Figures:
    """Compare what the trainings logged and the weights they ended with."""
    equal = close = 0
    different: dict[str, str] = {}
    extra: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for key in stock.keys() & other.keys():
        one, two = stock[key], other[key]
        extra.update(_keys(two) - _keys(one))
        lost.update(_keys(one) - _keys(two))
        gap, what = difference(one, two)
        if gap > CLOSE:
            different[f"{one.test} {one.number}"] = what
        elif gap or one.digest != two.digest:
            close += 1
        else:
            equal += 1
    return Figures(
        equal,
        close,
        dict(sorted(different.items())),
        dict(extra.most_common()),
        dict(lost.most_common()),
    )


def _keys(training: Training) -> set[str]:
    return {key for entry in training.log for key in entry}


def difference(one: Training, two: Training) -> tuple[float, str]:
    """The largest relative difference between the figures of two trainings, and the first that is
    not rounding.
    """
    ends = ("steps", one.steps, two.steps), ("log entries", len(one.log), len(two.log))
    for what, first, second in (
        ("error", _constant(one.error or ""), _constant(two.error or "")),
        *ends,
    ):
        if first != second:
            return math.inf, f"{what}: {first} | {second}"
    pairs = [
        (f"{key} of step {before.get('step')}", before[key], after[key])
        for before, after in zip(one.log, two.log, strict=True)
        for key in before.keys() & after.keys()
    ]
    pairs.append(("norm of the weights", one.norm, two.norm))
    gaps = [
        (relative(first, second), f"{what}: {first} | {second}") for what, first, second in pairs
    ]
    if missing := _keys(one) - _keys(two):
        gaps.append((math.inf, f"missing in the log: {', '.join(sorted(missing))}"))
    return max(gap for gap, _ in gaps), next((what for gap, what in gaps if gap > CLOSE), "")


def relative(one: Any, two: Any) -> float:
    """The relative difference of two figures; nothing between two that are not a number."""
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    gap = abs(one - two) / max(abs(one), abs(two))
    return math.inf if math.isnan(gap) else gap
