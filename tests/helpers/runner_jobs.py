"""Work for the runner's tests: small, picklable, and importable by a worker."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from advreg.lab.search.pool import Job, JobReporter, JobResult, failure_of


@dataclass(frozen=True)
class Answer:
    """Returns a value and the worker's process id."""

    value: Any

    def __call__(self, reporter: JobReporter) -> tuple[Any, int]:
        return self.value, os.getpid()


@dataclass(frozen=True)
class Fail:
    """Raises."""

    error: Exception

    def __call__(self, reporter: JobReporter) -> None:
        raise self.error


@dataclass(frozen=True)
class Die:
    """Sends its own process a signal, or leaves it."""

    number: int

    def __call__(self, reporter: JobReporter) -> None:
        if self.number < 0:
            os._exit(-self.number)
        os.kill(os.getpid(), self.number)
        time.sleep(60)


@dataclass(frozen=True)
class DieAtFirst:
    """Dies the first time, as if memory had run out; then returns how many workers there are."""

    folder: Path

    def __call__(self, reporter: JobReporter) -> int:
        first = self.folder / "died"
        if not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        children = psutil.Process(os.getppid()).children()
        return sum("spawn_main" in " ".join(child.cmdline()) for child in children)


@dataclass(frozen=True)
class Environment:
    """Waits until as many jobs run at once as there should, then returns a variable."""

    name: str
    folder: Path
    together: int = 1

    def __call__(self, reporter: JobReporter) -> str | None:
        (self.folder / str(os.getpid())).touch()
        wait_for(lambda: len(list(self.folder.iterdir())) >= self.together)
        return os.environ.get(self.name)


@dataclass(frozen=True)
class Sleep:
    """Writes its process id, sleeps, and says so when it is told to leave."""

    folder: Path
    stubborn: bool = False
    seconds_to_leave: float = 0.0

    def __call__(self, reporter: JobReporter) -> None:
        if self.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (self.folder / "pid").write_text(str(os.getpid()))
        try:
            time.sleep(60)
        finally:
            time.sleep(self.seconds_to_leave)
            (self.folder / "left").touch()


@dataclass(frozen=True)
class Count:
    """Takes many steps, and says a word."""

    steps: int

    def __call__(self, reporter: JobReporter) -> int:
        reporter.notice("counting")
        for step in range(1, self.steps + 1):
            reporter.step(step, self.steps, {"loss": 1 / step})
        return self.steps


@dataclass(frozen=True)
class Print:
    """Prints to the file descriptors, as libraries written in C do."""

    text: str

    def __call__(self, reporter: JobReporter) -> None:
        os.write(1, self.text.encode())


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.steps: list[tuple[int, int, dict[str, float]]] = []
        self.notices: list[str] = []
        self.ends: list[JobResult] = []
        self.postponements: list[JobResult] = []
        self.stops = 0

    def started(self, job: Job) -> None:
        self.names.append(job.name)

    def stepped(self, job: Job, step: int, total: int, values: Any) -> None:
        self.steps.append((step, total, dict(values)))

    def stopping(self) -> None:
        self.stops += 1

    def noticed(self, job: Job, text: str) -> None:
        self.notices.append(text)

    def ended(self, result: JobResult) -> None:
        self.ends.append(result)

    def postponed(self, result: JobResult) -> None:
        self.postponements.append(result)


class Inline:
    """A runner without processes; ``work`` does what a worker would, and may raise."""

    def __init__(
        self, work: Callable[[Any], Any] | None = None, stop_after: int | None = None
    ) -> None:
        self.work, self.stop_after = work, stop_after
        self.jobs: list[Job] = []

    @property
    def names(self) -> list[str]:
        return [job.name for job in self.jobs]

    @property
    def runs(self) -> list[Any]:
        return [job.work for job in self.jobs]

    def run(
        self, jobs: Iterable[Job], watcher: Seen, then: Callable[[JobResult], Iterable[Job]]
    ) -> list[JobResult]:
        waiting, repeated = deque(jobs), set[str]()
        while waiting:
            if len(self.jobs) == self.stop_after:
                raise KeyboardInterrupt
            job = waiting.popleft()
            self.jobs.append(job)
            result = self._result(job)
            if result.failure == "machine" and job.name not in repeated:
                repeated.add(job.name)
                waiting.append(job)
            else:
                waiting.extend(then(result))
        return []

    def _result(self, job: Job) -> JobResult:
        try:
            return JobResult(job, 1.0, (self.work or really)(job.work))  # type: ignore[arg-type]
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return JobResult(job, 1.0, error=text, failure=failure_of(error))


def really(run: Any) -> Any:
    """What a worker does with it, without a word."""

    class Silent:
        def step(self, *_: Any) -> None: ...

        def notice(self, _: str) -> None: ...

    return run(Silent())


def wait_for(condition: Any, seconds: float = 20) -> None:
    """Until it holds, or an error."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Is there a process of this id that is not merely waiting to be reaped?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
