from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from advreg.lab.runs import lock
from advreg.lab.runs.lock import LOCK_FILE, MARK_FILE, Holder, LockedError, locked
from advreg.lab.runs.plans import PLAN_FILE, chosen_folder
from advreg.lab.runs.settings import TrainSettings

Start = Callable[..., subprocess.Popen[str]]

# takes the folder given, says so, and does what comes after
HOLD = """
import os, sys, time
from pathlib import Path
from advreg.lab.runs.lock import LockedError, locked
try:
    with locked(Path(sys.argv[1])):
        print("held", flush=True)
        {then}
except LockedError as error:
    print(error, flush=True)
    sys.exit(2)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as ends:

        def started(folder: Path, then: str = "sys.stdin.read()") -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", HOLD.format(then=then), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.enter_context(process)
            ends.callback(process.kill)
            return process

        yield started


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(lock, "flock", refuse)


def test_a_second_process_is_refused_by_the_name_of_the_first(tmp_path: Path, start: Start) -> None:
    holder = start(tmp_path / "runs")
    assert first_line(holder) == "held"
    told = (
        rf"process {holder.pid} on {socket.gethostname()}, since .*, trains in '.*runs'; wait for "
        "its end, stop it, or choose another --output"
    )
    with pytest.raises(LockedError, match=told), locked(tmp_path / "runs"):
        pass
    holder.communicate()
    with locked(tmp_path / "runs"):
        pass


def test_of_many_processes_at_once_one_holds_the_folder(tmp_path: Path, start: Start) -> None:
    lines = [first_line(each) for each in [start(tmp_path / "runs") for _ in range(4)]]
    assert sorted(line == "held" for line in lines) == [False, False, False, True]


def test_a_killed_process_holds_nothing_though_its_forked_child_lives(
    tmp_path: Path, start: Start
) -> None:
    # the child speaks for itself, so that it is past the fork when its parent is killed
    child = "os.fork() or (print(os.getpid(), flush=True), time.sleep(60)); sys.stdin.read()"
    holder = start(tmp_path, child)
    assert first_line(holder) == "held"
    orphan = psutil.Process(int(first_line(holder)))
    try:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert orphan.is_running()
        with locked(tmp_path):
            assert Holder.of(tmp_path / LOCK_FILE) == Holder.this()
    finally:
        orphan.kill()


def test_a_forked_child_that_ends_leaves_the_lock(tmp_path: Path, start: Start) -> None:
    holder = start(tmp_path, "os.fork() and (os.wait(), print('ended', flush=True), input())")
    assert [first_line(holder), first_line(holder)] == ["held", "ended"]
    with pytest.raises(LockedError), locked(tmp_path):
        pass


def test_nothing_is_left_of_a_folder_that_stays_empty(tmp_path: Path) -> None:
    with locked(tmp_path / "runs" / "new"):
        assert (tmp_path / "runs" / "new" / LOCK_FILE).is_file()
    assert not any(tmp_path.iterdir())
    with locked(tmp_path / "runs" / "new"):
        (tmp_path / "runs" / "new" / "record.json").touch()
    assert [path.name for path in (tmp_path / "runs" / "new").iterdir()] == ["record.json"]


def test_a_lock_costs_next_to_nothing(tmp_path: Path) -> None:
    tmp_path.joinpath("there").touch()
    begun = time.perf_counter()
    for _ in range(20):
        with locked(tmp_path):
            pass
    assert (time.perf_counter() - begun) / 20 < 0.05


# ---- without flock


@pytest.mark.usefixtures("without_flock")
def test_without_flock_a_file_is_the_lock_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(tmp_path):
        assert "has no locks" in caplog.text
        assert MARK_FILE in caplog.text
        told = rf"process {os.getpid()} .* if it is no more, delete .*{MARK_FILE}"
        with pytest.raises(LockedError, match=told), locked(tmp_path):
            pass
        assert (tmp_path / MARK_FILE).is_file()
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("without_flock")
@pytest.mark.parametrize(
    ("change", "is_broken"),
    [
        ({}, False),
        ({"host": "elsewhere", "begun": 0.0}, False),
        ({"begun": 0.0}, True),  # another process has that id now
        ({"pid": 2**22 + 1}, True),
    ],
)
def test_a_lock_file_is_broken_only_if_its_process_on_this_host_is_gone(
    tmp_path: Path, change: dict[str, object], is_broken: bool
) -> None:
    holder = dataclasses.replace(Holder.this(), **change)  # type: ignore[arg-type]
    (tmp_path / MARK_FILE).write_text(json.dumps(dataclasses.asdict(holder)))
    try:
        with locked(tmp_path):
            assert is_broken
    except LockedError:
        assert not is_broken


@pytest.mark.usefixtures("without_flock")
def test_a_lock_file_that_names_no_process_is_not_broken(tmp_path: Path) -> None:
    (tmp_path / MARK_FILE).write_text("{")
    with pytest.raises(LockedError, match=r"^another process trains in"), locked(tmp_path):
        pass


# ---- folders of runs


def test_without_a_name_two_launches_take_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = TrainSettings()
    with chosen_folder(settings, False) as one, chosen_folder(settings, False) as other:
        assert (str(other), one == other) == (f"{one}-2", False)


def test_a_named_folder_and_a_resumed_one_are_refused_while_they_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual, named = TrainSettings(), TrainSettings(output="mine")
    with chosen_folder(usual, False) as one, chosen_folder(named, False):
        (one / "arch-seed0").mkdir()
        (one / "arch-seed0" / PLAN_FILE).write_text("{}")
        for settings, resume in ((named, False), (named, True), (usual, True)):
            with pytest.raises(LockedError), chosen_folder(settings, resume):
                pass
