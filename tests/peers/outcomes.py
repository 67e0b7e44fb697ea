"""A pytest plugin (``-p peers.outcomes``) that records how each test ended."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from peers.records import FAILED, OUTCOMES, PASSED, Outcome, append

REFUSAL = "UnsupportedError"  # advreg.hf.guards.capability's
KINDS = "kinds of error"
_REFUSAL = re.compile(rf"^(?:E\s+)?(?:\w+\.)*{REFUSAL}:", re.MULTILINE)
_PLACE = re.compile(r"advreg/((?:\w+/)*\w+\.py):\d+")


class Recorder:
    """Writes a line for each report.

    Args:
        file: where the lines go.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != PASSED:
            append(self.file, outcome_of(report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != PASSED:
            append(self.file, outcome_of(report))


def outcome_of(report: Any) -> Outcome:
    """What a report of pytest says."""
    text = report.longreprtext
    places = _PLACE.findall(text) if report.outcome == FAILED else []
    return Outcome(
        test=report.nodeid,
        outcome=report.outcome,
        message="" if report.outcome == PASSED else first_line(report),
        place=places[-1] if places else "",
        refused=report.outcome == FAILED and is_refusal(report),
        seconds=round(getattr(report, "duration", 0.0), 2),
    )


def is_refusal(report: Any) -> bool:
    """Whether the error or its cause is a refusal. A test that ran in another process has its text
    only.
    """
    kinds = dict(getattr(report, "user_properties", ())).get(KINDS, ())
    return REFUSAL in kinds or _REFUSAL.search(report.longreprtext) is not None


def kinds_of(error: BaseException | None) -> list[str]:
    """The classes of an error and of those it was raised from."""
    if error is None:
        return []
    return [kind.__name__ for kind in type(error).__mro__] + kinds_of(
        error.__cause__ or error.__context__
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    kinds = kinds_of(call.excinfo.value) if call.excinfo is not None else []
    report = yield
    report.user_properties.append((KINDS, kinds))
    return report


def first_line(report: Any) -> str:
    """The first line of the error or of the reason to skip."""
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skip
        return str(report.longrepr[2]).partition("\n")[0]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker's reports come here too
        config.pluginmanager.register(Recorder(Path(os.environ["PEERS_RECORD"]) / OUTCOMES))
