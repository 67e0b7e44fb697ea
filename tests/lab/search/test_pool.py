from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advreg.lab.search import pool as runners
from advreg.lab.search.pool import Job, JobResult, Runner, usual_size
from runner_jobs import (
    Answer,
    Count,
    Die,
    DieAtFirst,
    Environment,
    Fail,
    Print,
    Seen,
    Sleep,
    is_alive,
    wait_for,
)


def jobs(*work: Any) -> list[Job]:
    return [Job(f"job {number}", Path(), each) for number, each in enumerate(work)]


def run(size: int, *work: Any, **options: Any) -> dict[str, JobResult]:
    done = Runner(size, **options).run(jobs(*work), Seen())
    return {ended.job.name: ended for ended in done}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Any:
    yield
    assert multiprocessing.active_children() == []


def pids(ends: Sequence[JobResult]) -> set[int]:
    return {ended.value[1] for ended in ends if ended.value is not None}


def test_every_job_gets_its_own_value_and_two_workers_do_them_all() -> None:
    done = run(2, *(Answer(number) for number in range(7)))
    assert {name: ended.value[0] for name, ended in done.items()} == {
        f"job {number}": number for number in range(7)
    }
    assert len(pids(list(done.values()))) <= 2
    assert os.getpid() not in pids(list(done.values()))


def test_there_are_no_more_workers_than_jobs(tmp_path: Path) -> None:
    runner = Runner(5)
    started: list[Any] = []
    start = runner._start
    runner._start = lambda: started.append(1) or start()  # type: ignore[func-returns-value,method-assign]
    runner.run(jobs(Answer(1), Answer(2)), Seen())
    assert len(started) <= 2


@pytest.mark.parametrize(("size", "order"), [(1, "abcd"), (2, "bdac")])
def test_side_by_side_the_dearest_job_begins_first_and_alone_each_in_its_turn(
    size: int, order: str
) -> None:
    seen = Seen()
    costs = {"a": 1.0, "b": 3.0, "c": 1.0, "d": 2.0}
    Runner(size).run([Job(name, Path(), Answer(name), cost) for name, cost in costs.items()], seen)
    assert seen.names == list(order)


def test_a_job_that_has_ended_may_bring_others() -> None:
    def then(ended: JobResult) -> list[Job]:
        number = ended.value[0]
        return [Job(f"after {number}", Path(), Answer(number - 1))] if number else []

    seen = Seen()
    done = Runner(1).run(jobs(Answer(3)), seen, then)
    assert [ended.value[0] for ended in done] == [3, 2, 1, 0]
    assert seen.names == ["job 0", "after 3", "after 2", "after 1"]
    assert seen.ends == done


def test_a_job_that_raises_fails_with_its_reason_and_the_others_go_on() -> None:
    done = run(1, Answer(1), Fail(KeyError("radius")), Answer(2), Fail(AssertionError()))
    assert done["job 1"].error == "KeyError: 'radius'"
    assert done["job 1"].trace is not None
    assert "in __call__" in done["job 1"].trace
    wordless = done["job 3"].error or ""
    assert re.fullmatch(
        r"AssertionError: in __call__, runner_jobs\.py:\d+: raise self\.error", wordless
    )
    assert (done["job 0"].value[0], done["job 2"].value[0]) == (1, 2)
    assert done["job 0"].value[1] != done["job 2"].value[1]  # the process may have been harmed


def test_a_number_that_is_not_finite_does_not_cost_the_worker() -> None:
    done = run(1, Answer(1), Fail(FloatingPointError("the loss is nan")), Answer(2))
    assert done["job 1"].error == "FloatingPointError: the loss is nan"
    assert done["job 0"].value[1] == done["job 2"].value[1]


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        (
            signal.SIGKILL,
            "its process was ended by SIGKILL, as the system does when memory runs out",
        ),
        (signal.SIGABRT, "its process was ended by SIGABRT"),
        (-3, "its process ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_fails_its_job_and_is_replaced(death: int, reason: str) -> None:
    done = run(1, Answer(1), Die(death), Answer(2))
    assert (done["job 1"].error, done["job 1"].failure) == (reason, "machine")
    assert done["job 2"].value[0] == 2
    assert done["job 0"].value[1] != done["job 2"].value[1]


def test_a_job_whose_worker_died_is_repeated_alone_after_the_others(tmp_path: Path) -> None:
    seen = Seen()
    work = [DieAtFirst(tmp_path), *(Answer(number) for number in range(4))]
    done = {result.job.name: result for result in Runner(2).run(jobs(*work), seen)}
    assert seen.names == ["job 0", "job 1", "job 2", "job 3", "job 4", "job 0"]
    assert [result.job.name for result in seen.postponements] == ["job 0"]
    assert (done["job 0"].value, done["job 0"].error) == (1, None)  # one worker, its own
    assert len(done) == len(seen.ends) == 5


@pytest.mark.parametrize(
    ("error", "attempts", "failure"),
    [
        (MemoryError("too large"), 2, "machine"),
        (OSError(28, "No space left on device"), 2, "machine"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), 2, "machine"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "machine"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), 2, "machine"),
        (FloatingPointError("the loss is nan"), 1, "diverged"),
        (ValueError("radius must be above 0"), 1, "error"),
    ],
)
def test_a_failure_of_the_machine_is_repeated_once_and_no_other(
    error: Exception, attempts: int, failure: str
) -> None:
    seen = Seen()
    (result,) = Runner(1).run(jobs(Fail(error)), seen)
    assert len(seen.names) == attempts
    assert (result.failure, result.error) == (failure, f"{type(error).__name__}: {error}")


def test_a_job_that_was_repeated_may_add_others(tmp_path: Path) -> None:
    more = Job("more", Path(), Answer(1))
    seen = Seen()
    Runner(1).run(
        jobs(DieAtFirst(tmp_path)), seen, lambda done: [more] if done.job is not more else []
    )
    assert seen.names == ["job 0", "job 0", "more"]


def test_workers_at_once_get_the_devices_in_turn(tmp_path: Path) -> None:
    done = run(4, *[Environment("CUDA_VISIBLE_DEVICES", tmp_path, 4)] * 4, devices=["3", "5"])
    assert sorted(ended.value for ended in done.values()) == ["3", "3", "5", "5"]


def test_a_worker_gets_its_share_of_the_cores_unless_the_user_said_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_cores", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    work = Environment("OMP_NUM_THREADS", tmp_path)
    assert run(3, work)["job 0"].value == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run(3, work)["job 0"].value == "5"


def test_of_many_steps_few_are_reported_and_always_the_last() -> None:
    seen = Seen()
    Runner(1).run(jobs(Count(20_000)), seen)
    assert seen.notices == ["counting"]
    assert seen.steps[-1] == (20_000, 20_000, {"loss": 1 / 20_000})
    (ended,) = seen.ends
    assert len(seen.steps) <= 2 + ended.seconds / runners.SECONDS_BETWEEN_MESSAGES


def test_what_a_worker_prints_goes_to_the_log_which_is_removed_if_empty(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(1, Print("hello"), log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "hello"
    run(
        1,
        Fail(KeyError("radius")),
        Fail(FloatingPointError("the loss is nan")),
        log=tmp_path / "errors",
    )
    assert (
        (tmp_path / "errors").read_text().rstrip().endswith("KeyError: 'radius'")
    )  # with its traceback
    run(1, Answer(1), log=tmp_path / "quiet")
    assert not (tmp_path / "quiet").exists()
    assert capfd.readouterr().out == ""


def test_no_worker_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="jobs must be 1 or more, got 0"):
        Runner(0)


# ---- being stopped


def interrupt_when(path: Path, times: int = 1) -> None:
    """Ctrl-C once the file is there."""

    def strike() -> None:
        wait_for(path.exists)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    threading.Thread(target=strike, daemon=True).start()


def test_ctrl_c_lets_every_job_leave_and_ends_its_process(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    interrupt_when(tmp_path / "pid")
    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        Runner(1).run(jobs(Sleep(tmp_path), Answer(1)), seen)
    assert seen.stops == 1
    assert (tmp_path / "left").exists()
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert signal.getsignal(signal.SIGINT) == handler


def test_a_job_that_is_stopped_has_time_to_save_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_GRACE_SECONDS", 0.1)
    interrupt_when(tmp_path / "pid")
    with pytest.raises(KeyboardInterrupt):
        Runner(1).run(jobs(Sleep(tmp_path, seconds_to_leave=1.0)), Seen())
    assert (tmp_path / "left").exists()


def test_a_second_ctrl_c_does_not_wait_for_a_job_that_will_not_leave(tmp_path: Path) -> None:
    interrupt_when(tmp_path / "pid", times=2)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Runner(1).run(jobs(Sleep(tmp_path, stubborn=True)), Seen())
    assert time.monotonic() - begun < runners._GRACE_SECONDS
    assert not (tmp_path / "left").exists()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_an_error_in_the_loop_leaves_no_worker_behind(tmp_path: Path) -> None:
    class Broken(Seen):
        def noticed(self, job: Job, text: str) -> None:
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="the display broke"):
        Runner(2).run(jobs(Count(5), Sleep(tmp_path)), Broken())


def test_workers_of_a_loop_that_was_killed_end_themselves(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from advreg.lab.search.pool import Job, Runner\n"
        "from runner_jobs import Seen, Sleep\n"
        f"Runner(1).run([Job('job', Path(), Sleep(Path({str(tmp_path)!r})))], Seen())\n"
    )
    paths = [str(Path(__file__).parents[2] / "helpers"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    loop = subprocess.Popen([sys.executable, "-c", code], env=environment)
    wait_for((tmp_path / "pid").exists)
    wait_for(lambda: (tmp_path / "pid").read_text() != "")
    worker = int((tmp_path / "pid").read_text())
    assert is_alive(worker)
    loop.kill()
    loop.wait()
    wait_for(lambda: not is_alive(worker))
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize(
    ("devices", "cores", "gigabytes", "expected"),
    [
        (["0", "1", "2"], 2, 1, 3),
        ([], 2, 24, 2),
        ([], 2, 7, 1),  # the second would push the first out of memory
        ([], 64, 500, 4),
        ([], 8, 2, 1),
    ],
)
def test_as_many_runs_go_side_by_side_as_there_are_gpus_or_else_cores_with_memory(
    devices: list[str], cores: int, gigabytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_cores", lambda: cores)
    monkeypatch.setattr(
        runners.psutil, "virtual_memory", lambda: SimpleNamespace(available=gigabytes * 2**30)
    )
    assert usual_size(devices) == expected
