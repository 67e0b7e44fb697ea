from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from advreg.cli import running
from advreg.cli.app import app
from advreg.cli.running import Tally, _Lines, _Live, find_devices
from advreg.cli.saying import Notices
from advreg.lab.search.pool import Job, JobResult, Remaining
from runner_jobs import Answer


@pytest.mark.parametrize("kind", [_Live, _Lines])
def test_the_display_counts_runs_and_names_failures(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_LINES", 0.0)
    console = Console(
        file=io.StringIO(), force_terminal=kind is _Live, width=160, color_system=None
    )
    first, second = (
        Job(name, Path(), Answer(1)) for name in ("rte/arch/seed-0", "rte/smart/seed-0")
    )
    with kind(console, Notices(console), lambda: Remaining(2, 2.0)) as display:
        display.started(first)
        display.started(second)
        display.stepped(first, 30, 60, {"loss": 0.5, "learning_rate": 1e-4})
        if isinstance(display, _Live):
            display.progress.refresh()  # it would by itself, a tenth of a second later
        display.noticed(first, "3 texts were cut")
        display.noticed(second, "3 texts were cut")
        display.ended(JobResult(first, 65.0))
        display.ended(JobResult(second, 1.0, error="OSError: the disk is full", trace="Traceback"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loss 0.5" in shown
    assert "30/60" in shown
    assert shown.count("3 texts were cut") == 1
    assert "rte/arch/seed-0: finished in 1 min 5 s" in shown
    assert "rte/smart/seed-0: failed after 1 s: OSError: the disk is full" in shown
    assert "Traceback" not in shown


def test_what_a_run_that_goes_on_had_done_before_does_not_make_it_fast() -> None:
    """Two runs of 100 steps, ten seconds a step; the first goes on after step 40."""
    clock, left = [0.0], [2]
    tally = Tally(lambda: Remaining(left[0], left[0]), lambda: clock[0])
    first, second = (Job(name, Path(), Answer(1)) for name in ("a", "b"))
    for step in range(41, 101):
        clock[0] += 10.0
        tally.stepped(first, step, 100)
        if step < 45:
            assert tally.eta() == "remaining time unknown"
        elif step == 50:
            assert tally.eta() == "about 25 min 0 s left"  # 150 steps
    left[0] = 1
    tally.finished(first)
    assert tally.eta() == "about 16 min 40 s left"
    clock[0] += 10.0
    tally.stepped(second, 1, 100)
    assert tally.eta() == "about 16 min 30 s left"
    assert (tally.completed, tally.total) == (1.01, 2)


def test_the_time_left_counts_what_each_run_costs() -> None:
    """Three runs, a second for each unit of their costs: 100, 300 and 300."""
    clock, left = [0.0], [Remaining(3, 700.0)]
    tally = Tally(lambda: left[0], lambda: clock[0])
    first, second = Job("standard", Path(), Answer(1), 100.0), Job("arch", Path(), Answer(1), 300.0)
    for step in range(1, 101):
        clock[0] += 1.0
        tally.stepped(first, step, 100)
        if step == 50:
            assert tally.eta() == "about 10 min 50 s left"
    left[0] = Remaining(2, 600.0)
    tally.finished(first)
    assert tally.eta() == "about 10 min 0 s left"
    for step in range(1, 31):
        clock[0] += 3.0
        tally.stepped(second, step, 100)
    assert tally.eta() == "about 8 min 30 s left"


@pytest.mark.parametrize(
    ("flags", "seen"),
    [([], ["2", "5"]), (["--devices", "0, 1"], ["0", "1"]), (["--devices", "cpu"], [])],
)
@pytest.mark.parametrize("command", ["compare", "study"])
def test_a_rehearsal_sees_the_devices_of_the_runs_and_no_others(
    command: str, flags: list[str], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a GPU cannot tell what is on one; that CUDA is told in time must do."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    found: list[list[str]] = []
    monkeypatch.setattr(
        f"advreg.cli.{command}.undertake", lambda *_: found.append(find_devices()) or 0
    )
    ended = CliRunner().invoke(app, [command, *flags])
    assert ended.exit_code == 0, ended.output
    assert found == [seen]
