"""What was found, as text and as a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from peers.bars import Reasons, differing, faults, stock_faults
from peers.compare import Comparison, counts, grouped, pass_rate
from peers.records import FAILED, PASSED, SKIPPED, Outcome

SHOWN = 20  # trainings with other figures that the text shows


@dataclass(frozen=True, kw_only=True)
class MethodReport:
    """A suite with a method.

    Args:
        method: its name.
        seconds: how long the run took.
        outcomes: of all tests.
        found: the comparison with stock.
        reasons: for the differences that are wanted.
    """

    method: str
    seconds: float
    outcomes: dict[str, Outcome]
    found: Comparison
    reasons: Reasons


@dataclass(frozen=True, kw_only=True)
class SuiteReport:
    """A suite with the stock trainer, and with methods.

    Args:
        suite: the library.
        version: of the library that is installed.
        commit: of the checkout whose tests ran; empty if it is not a repository.
        seconds: how long the stock run took.
        stock: outcomes of the stock run.
        methods: the other runs.
    """

    suite: str
    version: str
    commit: str
    seconds: float
    stock: dict[str, Outcome]
    methods: list[MethodReport] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What does not hold."""
        of_methods = (
            faults(self.suite, report.method, report.found, report.reasons)
            for report in self.methods
        )
        return stock_faults(self.suite, self.stock) + [
            fault for found in of_methods for fault in found
        ]

    def record(self) -> dict[str, Any]:
        """All of it, for a file of JSON."""
        return {
            "suite": self.suite,
            "version": self.version,
            "commit": self.commit,
            "faults": self.faults(),
            "stock": {
                "seconds": self.seconds,
                "pass_rate": pass_rate(self.stock),
                **_outcomes(self.stock),
            },
            "methods": {report.method: _method_record(report) for report in self.methods},
        }

    def lines(self) -> Iterator[str]:
        """The text."""
        yield f"{self.suite} {self.version}, tests of {self.commit or 'an unknown commit'}: {len(self.stock)} tests"
        share = f"{pass_rate(self.stock):.1%} of what is not skipped"
        yield f"  stock: {_counted(self.stock)}, {self.seconds:.0f} s; {share}"
        yield from _failures(
            "failing with stock", [one for one in self.stock.values() if one.outcome == FAILED]
        )
        for report in self.methods:
            yield from _method_lines(report)


def _outcomes(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {
        "counts": counts(outcomes),
        "tests": {test: asdict(outcome) for test, outcome in outcomes.items()},
    }


def _method_record(report: MethodReport) -> dict[str, Any]:
    found = report.found
    return {
        "seconds": report.seconds,
        "trainings_through_the_mixin": found.trainings,
        "passed_with_both": len(found.passed),
        "refused": sorted(found.refused),
        "failed": grouped(found.failed.values()),
        "gained": found.gained,
        "expected": {
            test: why
            for test, why in report.reasons.items()
            if test in differing(report.method, found)
        },
        "figures": asdict(found.figures),
        **_outcomes(report.outcomes),
    }


def _counted(outcomes: dict[str, Outcome]) -> str:
    count = counts(outcomes)
    return f"{count[PASSED]} passed, {count[FAILED]} failed, {count[SKIPPED]} skipped"


def _method_lines(report: MethodReport) -> Iterator[str]:
    found, reasons = report.found, report.reasons
    passing = len(found.passed) + len(found.refused) + len(found.failed)
    yield ""
    through = f"{found.trainings} trainings through the mixin"
    yield f"  {report.method}: {_counted(report.outcomes)}, {report.seconds:.0f} s; {through}"
    yield (
        f"    of {passing} that pass with stock: {len(found.passed)} passed, {len(found.refused)} "
        "refused, "
        f"{len(found.failed)} failed; only here pass {len(found.gained)}"
    )
    lost = found.failed.values()
    yield from _failures(
        "failing only with it, not expected", [one for one in lost if one.test not in reasons]
    )
    yield from _failures("refused before training", list(found.refused.values()))
    yield from _expected(report)
    yield from _figures(found)


def _failures(title: str, outcomes: list[Outcome]) -> Iterator[str]:
    if outcomes:
        yield f"    {title}: {len(outcomes)}"
    for cause, tests in grouped(outcomes).items():
        yield f"      {len(tests)} × {cause}"
        yield from (f"          {test}" for test in tests)


def _expected(report: MethodReport) -> Iterator[str]:
    wanted = [test for test in differing(report.method, report.found) if test in report.reasons]
    if wanted:
        yield f"    expected: {len(wanted)}"
    yield from (f"      {test}: {report.reasons[test]}" for test in wanted)


def _figures(found: Comparison) -> Iterator[str]:
    figures = found.figures
    both = figures.equal + figures.close + len(figures.different)
    yield (
        f"    figures of {both} trainings in both: {figures.equal} equal, {figures.close} equal "
        "but for rounding, "
        f"{len(figures.different)} different"
    )
    for training, what in list(figures.different.items())[:SHOWN]:
        yield f"      {training}: {what[:160]}"
    for title, keys in (("only in its logs", figures.extra), ("missing in its logs", figures.lost)):
        if keys:
            yield f"    {title}: " + ", ".join(f"{key} ({count})" for key, count in keys.items())
