"""Independent jobs in worker processes, several at a time, watched from one loop.

A job is a picklable callable. While it runs, its worker sends steps and notices to the loop, and at
the end its result or its error. A worker process stays for the next job. If it dies, the loop
replaces it and repeats its job once, alone; so it does where memory ran out or the disk failed.
Ctrl-C, SIGTERM and SIGHUP stop all workers: each gets SIGTERM, which ends its job at once, so a job
must be able to resume from what it has written. Workers end themselves when the loop was killed.

This module imports the standard library alone: a worker sets its threads and its GPU before it
imports torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import psutil

SECONDS_BETWEEN_MESSAGES = 0.3
SECONDS_TO_SAVE = 60.0
"""How long a job may take to stop: one step, or the rest of an evaluation, and a checkpoint."""
_RUNS_ON_CORES = 4
_BYTES_OF_A_RUN = 4 * 2**30  # of a model of base size with Adam, and what a batch takes
_TICK_SECONDS, _GRACE_SECONDS = 0.2, 10.0
_STOPPED = 143  # exit code of a process that SIGTERM ended
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


Failure = Literal["diverged", "machine", "error"]
"""Why a job has no result: a number was not finite; its process died, memory ran out or a file
failed; any other error, such as a missing file.
"""
_SIGNS_OF_THE_MACHINE = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed"),
    "killed by signal",  # a data loader's worker
)


class JobReporter(Protocol):
    """Reports the progress of a job; cheap enough to be called at every step."""

    def step(self, step: int, total: int, values: Mapping[str, float]) -> None:
        """The job is at ``step`` of ``total``; most of these calls are dropped."""

    def notice(self, text: str) -> None:
        """A message for the user."""


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Args:
        name: for displays and messages.
        folder: where it alone writes.
        work: a callable of an importable module, since it is pickled.
        cost: the time it takes, in any unit that all jobs share.
    """

    name: str
    folder: Path
    work: Callable[[JobReporter], Any]
    cost: float = 1.0


@dataclass(frozen=True)
class Remaining:
    """The jobs that are left: their number, and their cost in all."""

    jobs: int
    cost: float


@dataclass(frozen=True)
class JobResult:
    """A job that has ended: its value, or the reason for having none."""

    job: Job
    seconds: float
    value: Any = None
    error: str | None = None
    trace: str | None = None
    failure: Failure | None = None


class Watcher(Protocol):
    """Follows the jobs in the loop's process."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None: ...

    def noticed(self, job: Job, text: str) -> None: ...

    def ended(self, result: JobResult) -> None: ...

    def postponed(self, result: JobResult) -> None:
        """The job failed because of the machine, and will be repeated alone."""

    def stopping(self) -> None:
        """The user stops all jobs; those at work have :data:`SECONDS_TO_SAVE`."""


# ---- the worker's side


@dataclass(frozen=True)
class _Message:
    """What a worker sends: ``kind`` is step, notice, done or failed."""

    kind: str
    content: Any
    clean: bool = True  # whether the process may run another job


class _PipeReporter:
    """Sends a few messages a second at most."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last = float("-inf")

    def step(self, step: int, total: int, values: Mapping[str, float]) -> None:
        now = time.monotonic()
        if step < total and now - self._last < SECONDS_BETWEEN_MESSAGES:
            return
        self._last = now
        self._pipe.send(_Message("step", (step, total, dict(values))))

    def notice(self, text: str) -> None:
        self._pipe.send(_Message("notice", text))


def _serve(pipe: Connection, environment: Mapping[str, str], log: Path | None) -> None:
    """The main loop of a worker: run the jobs from the pipe, one after the other."""
    signal.signal(signal.SIGTERM, _leave)
    os.environ.update(environment)
    _redirect_output(log)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    while order := jobs.get():
        message = _execute(order, _PipeReporter(pipe))
        pipe.send(message)
        if not message.clean:
            return


def _execute(order: bytes, reporter: _PipeReporter) -> _Message:
    try:
        return _Message("done", pickle.loads(order)(reporter))
    except Exception as error:
        # A job that diverged leaves the process intact; after any other error (CUDA's, no memory)
        # it may be in no state to run another job
        failure, trace = failure_of(error), traceback.format_exc()
        if failure != "diverged":
            print(trace, file=sys.stderr, flush=True)  # into the log
        text = f"{type(error).__name__}: {str(error) or _location(error)}"
        return _Message("failed", (text, trace, failure), clean=failure == "diverged")


def failure_of(error: Exception) -> Failure:
    """The kind of failure that an exception means.

    Example:
        >>> failure_of(MemoryError()), failure_of(RuntimeError("CUDA error: out of memory"))
        ('machine', 'machine')
        >>> failure_of(FileNotFoundError("data.csv"))
        'error'
        >>> failure_of(FloatingPointError("the loss is nan")), failure_of(ValueError("weight"))
        ('diverged', 'error')
    """
    if isinstance(error, FloatingPointError):
        return "diverged"
    text = f"{type(error).__name__}: {error}".lower().replace("outofmemory", "out of memory")
    machine = isinstance(error, MemoryError | OSError) and not isinstance(error, FileNotFoundError)
    return "machine" if machine or any(sign in text for sign in _SIGNS_OF_THE_MACHINE) else "error"


def _location(error: Exception) -> str:
    """The location of an exception that has no message, such as the bare assertions of
    libraries.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name}, {Path(last.filename).name}:{last.lineno}: {last.line}"


def _listen(pipe: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    """Queue the orders; when the loop's process has ended, end this one."""
    try:
        while order := pipe.recv_bytes():
            jobs.put(order)
        jobs.put(b"")
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_TO_SAVE)
        os._exit(_STOPPED)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the exit
    raise SystemExit(_STOPPED)


def _redirect_output(log: Path | None) -> None:
    """Send what libraries print to the log rather than through the loop's display."""
    target = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
    faulthandler.enable(2)


# ---- the loop's side


@dataclass
class _Worker:
    """A process and its current job."""

    process: BaseProcess
    pipe: Connection
    device: str | None
    job: Job | None = None
    started: float = 0.0

    def take(self, job: Job) -> None:
        self.job, self.started = job, time.monotonic()
        with contextlib.suppress(OSError):  # the process died; the loop will notice
            self.pipe.send_bytes(pickle.dumps(job.work))

    def messages(self) -> Iterator[_Message]:
        """The messages that have arrived; fewer if the process has died."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    def release(self, **outcome: Any) -> JobResult:
        assert self.job is not None
        result = JobResult(self.job, time.monotonic() - self.started, **outcome)
        self.job = None
        return result


def usual_size(devices: Sequence[str]) -> int:
    """How many runs share the machine by default: one for each GPU; else one for each core that has
    the memory, since one thread trains a small model faster than its share of several threads. More
    than four runs would delay the first result.
    """
    if devices:
        return len(devices)
    room = int(psutil.virtual_memory().available) // _BYTES_OF_A_RUN
    return max(1, min(_cores(), room, _RUNS_ON_CORES))


class Runner:
    """Runs jobs, several at a time.

    Args:
        size: workers at a time.
        devices: ids of GPUs for CUDA_VISIBLE_DEVICES, dealt to the workers in turn; none: the
            variable stays unchanged.
        threads: of each worker; none: its share of the cores, or the value of OMP_NUM_THREADS.
        log: file for the output of the workers; it is removed at the end if it is empty.
    """

    def __init__(
        self,
        size: int,
        devices: Sequence[str] = (),
        threads: int | None = None,
        log: Path | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"jobs must be 1 or more, got {size}")
        self.size, self.devices, self.log = size, list(devices), log
        self.threads = threads or max(1, _cores() // size)
        self._workers: list[_Worker] = []

    def run(
        self,
        jobs: Iterable[Job],
        watcher: Watcher,
        then: Callable[[JobResult], Iterable[Job]] = lambda _: (),
    ) -> list[JobResult]:
        """Run all jobs, and those added by ``then`` when one has ended; KeyboardInterrupt when the
        user stops them.
        """
        waiting, postponed, done = list(jobs), list[Job](), list[JobResult]()
        repeated: set[str] = set()
        with _Stop() as stop:
            try:
                while waiting or postponed or self._is_busy:
                    if not waiting and not self._is_busy:
                        self._dismiss(stop)  # idle workers hold memory
                        waiting.append(postponed.pop(0))
                        repeated.add(waiting[0].name)
                    self._dispatch(waiting, watcher)
                    for result in self._results(watcher):
                        if result.failure == "machine" and result.job.name not in repeated:
                            postponed.append(result.job)
                            watcher.postponed(result)
                        else:
                            done.append(result)
                            waiting.extend(then(result))
                            watcher.ended(result)
                    if stop.asked:
                        watcher.stopping()
                        raise KeyboardInterrupt
                self._dismiss(stop)
            finally:
                self._end_all(stop)
        return done

    @property
    def _is_busy(self) -> bool:
        return any(worker.job for worker in self._workers)

    def _dispatch(self, waiting: list[Job], watcher: Watcher) -> None:
        while waiting:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None and len(self._workers) == self.size:
                return
            worker = idle or self._start()
            job = self._next(waiting)
            worker.take(job)
            watcher.started(job)

    def _next(self, waiting: list[Job]) -> Job:
        """The first; with several workers the longest, which keeps all of them busy to the end."""
        costs = [job.cost for job in waiting]
        return waiting.pop(costs.index(max(costs)) if self.size > 1 else 0)

    def _start(self) -> _Worker:
        device = self._least_used()
        environment = {"TOKENIZERS_PARALLELISM": "false"}
        if "OMP_NUM_THREADS" not in os.environ:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # not a daemon: a job may start processes that load data
        process = context.Process(target=_serve, args=(theirs, environment, self.log))
        with _interrupts_held():
            process.start()
        theirs.close()
        worker = _Worker(process, ours, device)
        self._workers.append(worker)
        return worker

    def _least_used(self) -> str | None:
        used = [worker.device for worker in self._workers]
        return min(self.devices, key=used.count, default=None)

    def _results(self, watcher: Watcher) -> Iterator[JobResult]:
        """Wait a moment for messages, pass them on, and yield the results among them."""
        handles: list[Any] = [
            handle for worker in self._workers for handle in (worker.pipe, worker.process.sentinel)
        ]
        ready = connection.wait(handles, _TICK_SECONDS)
        for worker in list(self._workers):
            if worker.pipe not in ready and worker.process.sentinel not in ready:
                continue
            died = worker.process.sentinel in ready  # before its last messages are read
            for message in worker.messages():
                yield from self._receive(worker, message, watcher)
            if died and worker in self._workers:
                self._remove(worker)
                if worker.job is not None:
                    reason = _death(worker.process.exitcode, self.log)
                    yield worker.release(error=reason, failure="machine")

    def _receive(self, worker: _Worker, message: _Message, watcher: Watcher) -> Iterator[JobResult]:
        assert worker.job is not None
        if message.kind == "step":
            watcher.stepped(worker.job, *message.content)
        elif message.kind == "notice":
            watcher.noticed(worker.job, message.content)
        elif message.kind == "done":
            yield worker.release(value=message.content)
        else:
            error, trace, failure = message.content
            result = worker.release(error=error, trace=trace, failure=failure)
            if not message.clean:
                self._remove(worker)
            yield result

    def _remove(self, worker: _Worker) -> None:
        """Remove a worker that has ended or is ending."""
        self._workers.remove(worker)
        worker.process.join(_GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()

    def _dismiss(self, stop: _Stop) -> None:
        """End the workers, all of them idle, and wait for them."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(b"")
        self._await_ends(stop, _GRACE_SECONDS)

    def _end_all(self, stop: _Stop) -> None:
        for worker in self._workers:
            worker.process.terminate()
        self._await_ends(stop, SECONDS_TO_SAVE)
        for worker in list(self._workers):
            worker.process.kill()
            self._remove(worker)
        if self.log is not None and self.log.is_file() and self.log.stat().st_size == 0:
            self.log.unlink()

    def _await_ends(self, stop: _Stop, seconds: float) -> None:
        """Wait until all have ended, for a limited time and until the user asks again."""
        until, asked = time.monotonic() + seconds, stop.asked
        while self._workers and time.monotonic() < until and stop.asked <= max(asked, 1):
            connection.wait([worker.process.sentinel for worker in self._workers], _TICK_SECONDS)
            for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
                self._remove(worker)


@dataclass
class _Stop:
    """Counts how often the user asks to stop, instead of acting on the signals."""

    asked: int = 0
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C. A process that starts meanwhile inherits the block and ignores Ctrl-C; the loop
    stops it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # a later start would unblock interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(code: int | None, log: Path | None) -> str:
    """Why a job has no result when its worker ended without a message."""
    output = "" if log is None else f"; its last output is in {log.name}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}{output}"
    return f"its process ended with exit code {code}{output}"


def _cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
