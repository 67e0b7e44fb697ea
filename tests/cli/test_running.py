from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from advreg.cli import running
from advreg.cli.running import _Lines, _Live, find_devices
from advreg.cli.saying import Notices
from advreg.recipes.runner import Ended, Job
from runner_jobs import Answer


@pytest.mark.parametrize("kind", [_Live, _Lines])
def test_the_display_counts_runs_and_names_failures(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_LINES", 0.0)
    console = Console(file=io.StringIO(), force_terminal=kind is _Live, width=160, color_system=None)
    first, second = (Job(name, Path(), Answer(1)) for name in ("rte/arch/seed-0", "rte/smart/seed-0"))
    with kind(console, Notices(console), lambda: 2) as display:
        display.started(first)
        display.started(second)
        display.stepped(first, 30, 60, {"loss": 0.5, "learning_rate": 1e-4})
        if isinstance(display, _Live):
            display.progress.refresh()  # it would by itself, a tenth of a second later
        display.noticed(first, "3 texts were cut")
        display.noticed(second, "3 texts were cut")
        display.ended(Ended(first, 65.0))
        display.ended(Ended(second, 1.0, error="OSError: the disk is full", trace="Traceback"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loss 0.500" in shown
    assert "30/60" in shown
    assert shown.count("3 texts were cut") == 1
    assert "rte/arch/seed-0: finished in 1 min 5 s" in shown
    assert "rte/smart/seed-0: failed after 1 s: OSError: the disk is full" in shown
    assert "Traceback" not in shown


def test_devices_are_those_given_or_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert find_devices(None) == ["2", "5"]
    assert find_devices("0, 1") == ["0", "1"]
    assert find_devices("cpu") == [""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices(None) == []
