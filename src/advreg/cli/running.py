"""Many runs with a live display, for ``advreg compare`` and ``advreg study``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import TaskID

from advreg.cli.saying import Notices, bars, note
from advreg.lab.drawing import check_drawable
from advreg.lab.report.labels import counted, duration
from advreg.lab.report.tables import Table, to_rich
from advreg.lab.runs.bases import split
from advreg.lab.runs.lock import locked
from advreg.lab.search.pool import (
    SECONDS_TO_SAVE,
    Job,
    JobResult,
    Remaining,
    Runner,
    Watcher,
    usual_size,
)

INTERRUPTED = 130
MARKDOWN_FILE, COMPARE_PAGE = "table.md", "compare.md"
LOG_FILE = "workers.log"
_SECONDS_BETWEEN_LINES = 15.0
_SHARE_BEFORE_GUESS = 0.05  # of one run
_STOPPING = (
    f"stopping: runs have time to write a checkpoint first: {SECONDS_TO_SAVE:.0f} s; "
    "press Ctrl-C again to leave immediately"
)

_REPEATED = "; it is repeated alone, when the other runs have ended"


class RunSet(Protocol):
    """Runs in a folder, some of them already finished: a comparison, a study."""

    @property
    def left(self) -> Remaining:
        """The remaining runs."""

    def run(self, runner: Runner, watcher: Watcher) -> Any:
        """Make them; KeyboardInterrupt when the user stops them."""


U = TypeVar("U", bound=RunSet)


@dataclass(frozen=True)
class RunOptions:
    """How to execute runs.

    Args:
        jobs: parallel runs; none: chosen for the machine.
        picture: file of the picture.
        dry_run: only check the settings and print the plan.
    """

    jobs: int | None = None
    picture: Path | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.picture is not None:
            check_drawable(self.picture)


def undertake(
    make: Callable[[Notices], U],
    announce: Callable[[U, int], str],
    finish: Callable[[], bool],
    folder: Path,
    options: RunOptions,
    console: Console,
) -> int:
    """Make the remaining runs and print the results; returns the exit code.

    Args:
        make: loads and checks the undertaking, and prints notices.
        announce: the plan, given the number of workers.
        finish: prints the results, and returns whether all runs have one.
        folder: of the runs; it is locked.
        options: how to execute the runs.
        console: to print on.
    """
    with nullcontext() if options.dry_run else locked(folder):
        return _undertaken(make, announce, finish, folder, options, console)


def _undertaken(
    make: Callable[[Notices], U],
    announce: Callable[[U, int], str],
    finish: Callable[[], bool],
    folder: Path,
    options: RunOptions,
    console: Console,
) -> int:
    from advreg.lab.kinds.training import quiet_libraries

    quiet_libraries()
    places = find_devices()
    size = options.jobs if options.jobs is not None else usual_size(places)
    runner, say = Runner(size, places, log=folder / LOG_FILE), Notices(console)
    what = make(say)
    say(announce(what, runner.size))
    if options.dry_run:
        return 0
    display = (_Live if console.is_terminal else _Lines)(console, say, lambda: what.left)
    try:
        with display:
            what.run(runner, display)
    except KeyboardInterrupt:
        console.print(
            f"interrupted with {counted(what.left.jobs, 'run')} left. Finished runs have their "
            f"records in {folder}, "
            "the others their last checkpoint: repeat the command to resume",
            highlight=False,
            soft_wrap=True,
        )
        return INTERRUPTED
    return 0 if finish() else 1


def tell(tables: Iterable[Table], lists: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print tables, then lists under their titles; empty lists are omitted."""
    for table in tables:
        console.print(table.caption, highlight=False, markup=False)
        console.print(to_rich(table))
    for title, lines in lists.items():
        if lines:
            console.print(
                "\n".join([title, *(f"  {line}" for line in lines)]), highlight=False, markup=False
            )


def write_tables(folder: Path, markdown: str, page: str = MARKDOWN_FILE) -> list[Path]:
    """Write the tables for a page; returns the files."""
    path = folder / page
    path.write_text(markdown, encoding="utf-8")
    return [path]


def find_devices() -> list[str]:
    """The GPUs that this process may see."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return split(allowed)
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


class _Display(Watcher, AbstractContextManager["_Display"], Protocol):
    """Shows the jobs within its context."""


class Tally:
    """Progress of all jobs together, and the remaining time.

    Args:
        left: remaining runs.
        now: the time, in seconds.
    """

    def __init__(
        self, left: Callable[[], Remaining], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.left, self.done, self._now, self._begun = left, 0, now, now()
        self._jobs: dict[str, Job] = {}  # that have made a step, finished ones too
        self._shares: dict[str, float] = {}  # of those at work, how much of each is done
        self._found: dict[
            str, float
        ] = {}  # of all, how much was done before: a run that goes on begins there

    def stepped(self, job: Job, step: int, total: int) -> None:
        self._jobs[job.name] = job
        self._found.setdefault(job.name, (step - 1) / max(total, 1))
        self._shares[job.name] = step / max(total, 1)

    def finished(self, job: Job) -> None:
        self._shares.pop(job.name, None)
        self.done += 1

    def postponed(self, job: Job) -> None:
        self._shares.pop(job.name, None)
        self._found.pop(job.name, None)

    @property
    def completed(self) -> float:
        return self.done + sum(self._shares.values())

    @property
    def total(self) -> int:
        return self.done + self.left().jobs

    def eta(self) -> str:
        """The remaining time in words, at the speed of this session so far."""
        made = {name: self._shares.get(name, 1.0) - found for name, found in self._found.items()}
        if sum(made.values()) < _SHARE_BEFORE_GUESS:
            return "remaining time unknown"
        left = self.left().cost - self._cost(self._shares)
        return f"about {duration((self._now() - self._begun) * left / self._cost(made))} left"

    def _cost(self, shares: Mapping[str, float]) -> float:
        return sum(share * self._jobs[name].cost for name, share in shares.items())


class _Live:
    """A bar for each running job, one for all, and a line for each that has ended; for a
    terminal.
    """

    def __init__(self, console: Console, say: Notices, left: Callable[[], Remaining]) -> None:
        self.tally, self.say = Tally(left), say
        self.bars: dict[str, TaskID] = {}
        self.progress = bars(console, transient=True, speed_estimate_period=600)
        self.all = self.progress.add_task("[bold]all runs", total=None, note="")

    def __enter__(self) -> _Live:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, job: Job) -> None:
        self.bars[job.name] = self.progress.add_task(job.name, total=None, note="starting")
        self._update()

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None:
        self.tally.stepped(job, step, total)
        self.progress.update(self.bars[job.name], completed=step, total=total, note=note(values))
        self._update()

    def noticed(self, job: Job, text: str) -> None:
        self.say(text)

    def stopping(self) -> None:
        self.say(_STOPPING)

    def ended(self, result: JobResult) -> None:
        self.progress.remove_task(self.bars.pop(result.job.name))
        self.tally.finished(result.job)
        self.say(_last_line(result))
        self._update()

    def postponed(self, result: JobResult) -> None:
        self.progress.remove_task(self.bars.pop(result.job.name))
        self.tally.postponed(result.job)
        self.say(f"{_last_line(result)}{_REPEATED}")

    def _update(self) -> None:
        self.progress.update(
            self.all, completed=self.tally.completed, total=self.tally.total, note=self.tally.eta()
        )


class _Lines:
    """Plain lines, for files and pipes."""

    def __init__(self, console: Console, say: Notices, left: Callable[[], Remaining]) -> None:
        self.console, self.tally, self.say = console, Tally(left), say
        self.last = time.monotonic()
        self.running: dict[str, str] = {}

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass  # nothing to take down

    def started(self, job: Job) -> None:
        self.running[job.name] = f"{job.name} starting"

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None:
        self.tally.stepped(job, step, total)
        self.running[job.name] = f"{job.name} {step}/{total} {note(values)}".rstrip()
        if time.monotonic() - self.last > _SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            self._print(f"{self._so_far()}; {'; '.join(self.running.values())}")

    def noticed(self, job: Job, text: str) -> None:
        self.say(text)

    def stopping(self) -> None:
        self.say(_STOPPING)

    def ended(self, result: JobResult) -> None:
        self.running.pop(result.job.name, None)
        self.tally.finished(result.job)
        self._print(f"{_last_line(result)} ({self._so_far()})")

    def postponed(self, result: JobResult) -> None:
        self.running.pop(result.job.name, None)
        self.tally.postponed(result.job)
        self._print(f"{_last_line(result)}{_REPEATED}")

    def _so_far(self) -> str:
        return f"{self.tally.done} of {counted(self.tally.total, 'run')}, {self.tally.eta()}"

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def _last_line(result: JobResult) -> str:
    name, seconds = result.job.name, duration(result.seconds)
    if result.error is None:
        return f"{name}: finished in {seconds}"
    trace = f"\n{result.trace}" if result.trace and os.environ.get("ADVREG_DEBUG") else ""
    return f"{name}: failed after {seconds}: {result.error}{trace}"
