"""A pytest plugin (``-p peers.outcomes``) that records how each test ended."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from peers.records import FAILED, OUTCOMES, PASSED, Outcome, append

_REFUSAL = re.compile(r"^(?:E\s+)?(?:\w+\.)*UnsupportedError:", re.MULTILINE)  # advreg.hf.capability's
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
        refused=report.outcome == FAILED and _REFUSAL.search(text) is not None,
        seconds=round(getattr(report, "duration", 0.0), 2),
    )


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
