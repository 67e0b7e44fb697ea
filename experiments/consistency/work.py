"""Process a queue of contests: many runs in parallel, each appended to one file of records when it
is finished.

    python experiments/consistency/work.py --contests builtin --data DATA --out runs.jsonl.gz \
        --jobs 2
    python experiments/consistency/work.py --contests understanding,translation --data DATA \
        --out $OUT/runs.jsonl.gz --known earlier.jsonl.gz --jobs 15 --seconds 560

DATA holds ``nlu/``, ``mt/``, ``sft/`` and ``builtin/`` (see pack.py). Runs whose records are in OUT
or in a file of --known are not repeated, and they determine the choice of candidates, so the same
command resumes where it was stopped.
With --seconds it stops in time: it starts no run that would not finish, and stops running ones.
Runs are ordered by contest as given, candidates first, then by seed, so that at the end the same
runs are missing for every method.

A run's key is CONTEST/TASK/STAGE/CONTESTANT/CANDIDATE/seed-N, STAGE tune or result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import stages
import torch
from contests import CONTESTS, STANDARD, Contest
from scoring import can_solve, primary_score, scores, validation_score
from stages import Planned, planned
from text_runs import TextRun

from advreg.lab.search.pool import Job, JobReporter, JobResult, Runner
from advreg.records.log import RecordLog
from advreg.records.run import RunRecord

# time relative to Standard's until it has been measured
_FACTORS = {
    "r3f": 1.6,
    "rdrop": 1.6,
    "simcut": 1.6,
    "arch": 2.5,
    "smart": 4.0,
    "temporal": 1.2,
    "ols": 1.2,
}
_LEAST_SECONDS = 60.0  # of what can go on later, to be worth beginning


@dataclass(frozen=True)
class Timed:
    """A run that is begun only where there is time for it: else nothing comes out."""

    run: Any
    seconds: float
    deadline: float | None

    def __call__(self, reporter: JobReporter) -> RunRecord | None:
        if self.deadline is not None and time.time() + self.seconds > self.deadline:
            return None
        try:
            found: RunRecord = self.run(reporter)
        finally:
            free_memory()
        return found


def free_memory() -> None:
    """Release all memory of a run for the next one in the process and for other processes on the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Queue:
    """Hands out what can be run, and writes down what came out.

    Args:
        asked: the command line.
        names: of the contests, the most important first.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.names: list[str] = asked.contests.split(",")
        self.log = RecordLog(asked.out)
        self.deadline = None if asked.seconds is None else time.time() + asked.seconds
        done = [
            record for path in (*asked.known, asked.out) for record in RecordLog(path).records()
        ]
        self.scores, self.solves = scores(done), can_solve(done)
        self.seen = set(self.scores)
        self.made = 0

    def jobs(self) -> Iterator[Job]:
        """The runs that can be made now and were not handed out before."""
        for rank, name in enumerate(self.names):
            for number, each in enumerate(self._wanted(CONTESTS[name])):
                if each.key not in self.seen:
                    self.seen.add(each.key)
                    yield Job(
                        each.key, Path(each.key), self._work(each), -self._place(rank, number, each)
                    )

    def _wanted(self, contest: Contest) -> Iterator[Planned]:
        for each in planned(contest, self.scores):
            without = any(fnmatch(each.key, pattern) for pattern in self.asked.without)
            if fnmatch(each.key, self.asked.only) and not without:
                yield each

    def _place(self, rank: int, number: int, each: Planned) -> float:
        """Its place in the queue; Standard's candidates come first, since all others wait for
        them.
        """
        first = each.stage == stages.TUNE and each.contestant == STANDARD
        return number + 1e5 * (rank - len(self.names) * first)

    def _work(self, each: Planned) -> Timed:
        data, changes = self.asked.data.absolute(), tuple(json.loads(self.asked.changes).items())
        kind, scratch = CONTESTS[each.contest].kind, self.asked.scratch.absolute()
        if kind == "text":
            return Timed(TextRun(each, data, changes), seconds_of(each), self.deadline)
        run: Any
        if kind == "translation":
            from translation_runs import TranslationRun  # needs sacrebleu

            run = TranslationRun(each, data, changes, scratch)
        else:
            from language_runs import LanguageRun  # so does this

            run = LanguageRun(each, data, changes, scratch, self.solves)
        return Timed(run, _LEAST_SECONDS, self.deadline)

    def then(self, ended: JobResult) -> Iterable[Job]:
        """Write a run down; what it decides can be run from now on."""
        if ended.error is not None:
            self._complain(ended)
        elif ended.value is not None:
            self._keep(ended.value, ended.seconds)
            return list(self.jobs())
        return ()

    def _keep(self, record: RunRecord, seconds: float) -> None:
        self.log.append(record)
        self.scores[record.name] = validation_score(record)
        self.solves = self.solves or can_solve([record])
        self.made += 1
        told = f"valid {self.scores[record.name]:.2f}"
        if record.outcome.status == "finished":
            told += f", test {primary_score(record):.2f}"
        print(f"{record.name}: {told} ({seconds:.0f} s)", flush=True)

    def _complain(self, ended: JobResult) -> None:
        print(f"{ended.job.name} FAILED: {ended.error}", flush=True)
        with open(f"{self.asked.out}.errors", "a", encoding="utf-8") as file:
            file.write(f"{ended.job.name}: {ended.error}\n{ended.trace or ''}\n")

    # ---- the runner's watcher

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None: ...

    def noticed(self, job: Job, text: str) -> None: ...

    def ended(self, ended: JobResult) -> None: ...

    def stopping(self) -> None: ...


def seconds_of(each: Planned) -> float:
    """How long a run may take."""
    contest = CONTESTS[each.contest]
    longer = each.point.settings.get("epochs", contest.base["epochs"]) / contest.base["epochs"]
    return float(contest.guess * longer * _FACTORS.get(each.point.method, 1.0))


def stop_after(seconds: float) -> None:
    """Interrupt this process then, as Ctrl-C does."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--contests", required=True, help=f"of {', '.join(CONTESTS)}, the most important first"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file of records, appended to")
    parser.add_argument(
        "--known", type=Path, nargs="*", default=[], help="files of records of earlier calls"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="stop in this time")
    parser.add_argument(
        "--only", default="*", help="runs whose key is like this: understanding/*/tune/*"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], help="runs to leave for later: */arch/*"
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("runs/consistency"), help="checkpoints of long runs"
    )
    parser.add_argument(
        "--changes", default="{}", help="of the contests' settings, as JSON; for a quick look only"
    )
    return parser.parse_args()


def main() -> None:
    asked = read_flags()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    queue = Queue(asked)
    before = len(queue.scores)
    if asked.seconds is not None:
        stop_after(asked.seconds)
    try:
        Runner(asked.jobs, log=Path(f"{asked.out}.workers")).run(queue.jobs(), queue, queue.then)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    print(f"{queue.made} runs made, {before} known before", flush=True)


if __name__ == "__main__":
    main()
