"""Independent jobs side by side: worker processes that stay for the next job, watched from one
loop.

A job is a picklable callable. Its worker tells the loop of steps and notices while it runs, and at
the end what came out or why it failed. A worker that dies fails its job and is replaced; the others
go on. Ctrl-C, SIGTERM and SIGHUP stop all of them: each gets SIGTERM, which ends its job where it
stands, so a job must be able to go on from what it has written by then. Workers of a loop that was
killed notice it and end themselves.

This module imports the standard library alone: a worker sets its threads and its GPU before torch
is there.
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
from typing import Any, Protocol

import psutil

SECONDS_BETWEEN_MESSAGES = 0.3
SECONDS_TO_SAVE = 60.0
"""How long a job that is told to stop may take: a step, or what is left of an evaluation, and a
checkpoint.
"""
_RUNS_ON_CORES = 4
_BYTES_OF_A_RUN = 4 * 2**30  # of a model of base size with Adam, and what a batch takes
_TICK_SECONDS, _GRACE_SECONDS = 0.2, 10.0
_STOPPED = 143  # what a shell makes of SIGTERM
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Tell(Protocol):
    """How a job says what it is doing; to be called as often as one likes."""

    def step(self, step: int, total: int, values: Mapping[str, float]) -> None:
        """It is at ``step`` of ``total``; most of these calls are dropped."""

    def notice(self, text: str) -> None:
        """Something the user should know."""


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Args:
        name: as it is shown.
        folder: what it writes goes here, and nobody else writes here.
        work: does it; a callable of an importable module, since it is pickled.
        cost: the time it takes, in any unit that all jobs share.
    """

    name: str
    folder: Path
    work: Callable[[Tell], Any]
    cost: float = 1.0


@dataclass(frozen=True)
class Left:
    """What is still to be done: how many jobs, and what they cost in all."""

    jobs: int
    cost: float


@dataclass(frozen=True)
class Ended:
    """A job that is over: its value, or why there is none."""

    job: Job
    seconds: float
    value: Any = None
    error: str | None = None
    trace: str | None = None


class Watcher(Protocol):
    """Sees the jobs from the loop's side."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None: ...

    def noticed(self, job: Job, text: str) -> None: ...

    def ended(self, ended: Ended) -> None: ...

    def stopping(self) -> None:
        """The user asked for it; jobs at work have :data:`SECONDS_TO_SAVE`."""


# ---- the worker's side


@dataclass(frozen=True)
class _Message:
    """What a worker sends: ``kind`` is step, notice, done or failed."""

    kind: str
    content: Any
    clean: bool = True  # can the process be trusted with another job?


class _Voice:
    """The Tell of a worker: a few messages a second at most."""

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
    """A worker's life: jobs from the pipe, one after the other, until there is none."""
    signal.signal(signal.SIGTERM, _leave)
    os.environ.update(environment)
    _redirect_output(log)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    while order := jobs.get():
        message = _carried_out(order, _Voice(pipe))
        pipe.send(message)
        if not message.clean:
            return


def _carried_out(order: bytes, voice: _Voice) -> _Message:
    try:
        return _Message("done", pickle.loads(order)(voice))
    except Exception as error:
        # A number that is not finite is nobody's fault but the job's; after anything else (a CUDA
        # error, no memory)
        # the process may be in no state to go on
        clean, trace = isinstance(error, FloatingPointError), traceback.format_exc()
        if not clean:
            print(trace, file=sys.stderr, flush=True)  # into the log
        return _Message(
            "failed", (f"{type(error).__name__}: {str(error) or _place(error)}", trace), clean
        )


def _place(error: Exception) -> str:
    """Where an error without a word was raised, as the bare assertions of libraries are."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name}, {Path(last.filename).name}:{last.lineno}: {last.line}"


def _listen(pipe: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    """Hand orders on; when the loop is gone, end this process."""
    try:
        while order := pipe.recv_bytes():
            jobs.put(order)
        jobs.put(b"")
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_TO_SAVE)
        os._exit(_STOPPED)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: leaving is under way
    raise SystemExit(_STOPPED)


def _redirect_output(log: Path | None) -> None:
    """What libraries print goes to the log, not through the loop's display."""
    target = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
    faulthandler.enable(2)


# ---- the loop's side


@dataclass
class _Worker:
    """A process and the job it is at."""

    process: BaseProcess
    pipe: Connection
    device: str | None
    job: Job | None = None
    begun: float = 0.0

    def take(self, job: Job) -> None:
        self.job, self.begun = job, time.monotonic()
        with contextlib.suppress(OSError):  # it died; the loop will notice
            self.pipe.send_bytes(pickle.dumps(job.work))

    def messages(self) -> Iterator[_Message]:
        """What has arrived; ends early if the process is gone."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    def release(self, **outcome: Any) -> Ended:
        assert self.job is not None
        ended = Ended(self.job, time.monotonic() - self.begun, **outcome)
        self.job = None
        return ended


def usual_size(devices: Sequence[str]) -> int:
    """How many runs go side by side unless the user says: one for each GPU; else one for each core
    that has the memory.

    One thread trains a small model better than its share of several. More than four runs would keep
    the first result waiting.
    """
    if devices:
        return len(devices)
    room = int(psutil.virtual_memory().available) // _BYTES_OF_A_RUN
    return max(1, min(_cores(), room, _RUNS_ON_CORES))


class Runner:
    """Carries jobs out, several at once.

    Args:
        size: workers at a time.
        devices: ids of GPUs as CUDA_VISIBLE_DEVICES takes them, given to the workers in turn; none:
            left alone.
        threads: of each worker; none: its share of the cores, or what OMP_NUM_THREADS says.
        log: file for what the workers print; it is removed at the end if it is empty.
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
        then: Callable[[Ended], Iterable[Job]] = lambda _: (),
    ) -> list[Ended]:
        """All jobs, and those that ``then`` adds when one has ended; KeyboardInterrupt when the
        user stops them.
        """
        waiting, done = list(jobs), list[Ended]()
        with _Stop() as stop:
            try:
                while waiting or any(worker.job for worker in self._workers):
                    self._hand_out(waiting, watcher)
                    for ended in self._news(watcher):
                        done.append(ended)
                        waiting.extend(then(ended))
                        watcher.ended(ended)
                    if stop.asked:
                        watcher.stopping()
                        raise KeyboardInterrupt
                self._let_go(stop)
            finally:
                self._end_all(stop)
        return done

    def _hand_out(self, waiting: list[Job], watcher: Watcher) -> None:
        while waiting:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None and len(self._workers) == self.size:
                return
            worker = idle or self._start()
            job = self._next(waiting)
            worker.take(job)
            watcher.started(job)

    def _next(self, waiting: list[Job]) -> Job:
        """In their order; where several go side by side the dearest first, or one might be left to
        run alone.
        """
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
        # not a daemon: a job may have processes of its own, to load data
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

    def _news(self, watcher: Watcher) -> Iterator[Ended]:
        """Wait a moment for messages, pass them on, and yield what has ended."""
        handles: list[Any] = [
            handle for worker in self._workers for handle in (worker.pipe, worker.process.sentinel)
        ]
        ready = connection.wait(handles, _TICK_SECONDS)
        for worker in list(self._workers):
            if worker.pipe not in ready and worker.process.sentinel not in ready:
                continue
            gone = worker.process.sentinel in ready  # before its last messages are read
            for message in worker.messages():
                yield from self._heard(worker, message, watcher)
            if gone and worker in self._workers:
                self._remove(worker)
                if worker.job is not None:
                    yield worker.release(error=_death(worker.process.exitcode, self.log))

    def _heard(self, worker: _Worker, message: _Message, watcher: Watcher) -> Iterator[Ended]:
        assert worker.job is not None
        if message.kind == "step":
            watcher.stepped(worker.job, *message.content)
        elif message.kind == "notice":
            watcher.noticed(worker.job, message.content)
        elif message.kind == "done":
            yield worker.release(value=message.content)
        else:
            error, trace = message.content
            ended = worker.release(error=error, trace=trace)
            if not message.clean:
                self._remove(worker)
            yield ended

    def _remove(self, worker: _Worker) -> None:
        """Take a worker that has ended, or is ending, off the list."""
        self._workers.remove(worker)
        worker.process.join(_GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()

    def _let_go(self, stop: _Stop) -> None:
        """Tell idle workers that there is nothing more to do, and wait for them."""
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
        """Wait until all have ended; not for ever, and no longer once the user asks again."""
        until, asked = time.monotonic() + seconds, stop.asked
        while self._workers and time.monotonic() < until and stop.asked <= max(asked, 1):
            connection.wait([worker.process.sentinel for worker in self._workers], _TICK_SECONDS)
            for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
                self._remove(worker)


@dataclass
class _Stop:
    """Counts how often the user asked to stop; within, signals do nothing else."""

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
    """Within, Ctrl-C waits; a process that is started inherits it, and so never hears one: the loop
    will tell it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # or the start would, and let interrupts in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(code: int | None, log: Path | None) -> str:
    """Why a job has no result when its worker ended without a word."""
    told = "" if log is None else f"; what it printed last is in {log.name}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}{told}"
    return f"its process ended with exit code {code}{told}"


def _cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
