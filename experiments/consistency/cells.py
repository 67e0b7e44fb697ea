"""The records of the contests: the results of each contestant on each task, with the candidate that
was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from statistics import fmean, stdev

from contests import CONTESTS, STANDARD, Contest, Contestant
from scoring import primary_score, scores
from stages import RESULT, TUNE, Planned, Point, finalists

from advreg.records.run import RunRecord

_TEST_SETS = ("2016", "2017")  # in translation
_BREAK = timedelta(hours=1)

BySeed = dict[int, float]


@dataclass(frozen=True)
class Cell:
    """The results of one contestant on one task.

    Args:
        candidate: the one that was chosen.
        point: its settings.
        runs: by seed, if they have a score.
        sessions: in which each was made.
        diverged: how many others there are.
    """

    candidate: str
    point: Point
    runs: Mapping[int, RunRecord]
    sessions: Mapping[int, int]
    diverged: int

    @property
    def done(self) -> int:
        return len(self.runs) + self.diverged

    @cached_property
    def scores(self) -> BySeed:
        return {seed: primary_score(run) for seed, run in self.runs.items()}

    @property
    def deviation(self) -> float:
        """The standard deviation of the scores over seeds."""
        return stdev(self.scores.values()) if len(self.runs) > 1 else math.nan

    def calibration(self, name: str) -> BySeed:
        """A measure by seed, in translation the mean of the test sets; nothing where a task has no
        classes.
        """
        found = {}
        for seed, run in self.runs.items():
            metrics = run.outcome.metrics
            values = [
                metrics[key]
                for key in (name, *(f"{name}_{each}" for each in _TEST_SETS))
                if key in metrics
            ]
            if values:
                found[seed] = fmean(math.nan if value is None else value for value in values)
        return found

    def step_seconds(self, session: int) -> list[float]:
        """Seconds a step in the runs of a session."""
        made = [run for seed, run in self.runs.items() if self.sessions[seed] == session]
        return [run.outcome.timing["seconds_per_step"] or math.nan for run in made]

    def steps(self) -> float:
        """Steps in a training."""
        return fmean(run.outcome.timing["steps"] or math.nan for run in self.runs.values())

    def passes(self, kind: str) -> float:
        """Forward or backward passes a step."""
        return fmean(run.outcome.passes[kind] or math.nan for run in self.runs.values())


class Records:
    """The runs of all contests.

    Args:
        records: in any order; of two with one name the first counts.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.by_name: dict[str, RunRecord] = {}
        for record in records:
            self.by_name.setdefault(record.name, record)
        self.scores = scores(self.by_name.values())
        self.sessions = sessions(self.by_name.values())

    def of(self, contest: Contest) -> list[RunRecord]:
        return [
            record for name, record in self.by_name.items() if name.startswith(f"{contest.name}/")
        ]

    def cells(self, contest: Contest, task: str) -> dict[str, Cell]:
        """By contestant; only runs with the candidate that was chosen."""
        found = {}
        for name, (candidate, point) in finalists(contest, task, self.scores).items():
            keys = {
                seed: Planned(contest.name, task, RESULT, name, candidate, seed, point).key
                for seed in contest.seeds
            }
            made = {seed: self.by_name[key] for seed, key in keys.items() if key in self.by_name}
            scored = {seed: run for seed, run in made.items() if is_scored(run)}
            when = {seed: self.sessions[run.name] for seed, run in scored.items()}
            found[name] = Cell(candidate, point, scored, when, len(made) - len(scored))
        return found

    def tuned(self, contest: Contest, task: str) -> dict[str, tuple[int, int]]:
        """How many candidates are done of each contestant that is tuned, and how many it has."""
        wanted = {STANDARD: len(contest.standard)}
        wanted |= {name: len(each.variants) for name, each in contestants(contest, task).items()}
        return {
            name: (
                sum(
                    key.startswith("/".join((contest.name, task, TUNE, name, "")))
                    for key in self.scores
                ),
                count,
            )
            for name, count in wanted.items()
            if count > 1 and contest.follows is None
        }


def is_scored(run: RunRecord) -> bool:
    return run.outcome.status == "finished" and math.isfinite(primary_score(run))


def leader(contest: Contest) -> Contest:
    """The contest whose contestants it takes over, or itself."""
    return contest if contest.follows is None else CONTESTS[contest.follows]


def contestants(contest: Contest, task: str) -> dict[str, Contestant]:
    """Those other than Standard that can do a task."""
    return {each.name: each for each in leader(contest).contestants if task not in each.without}


def sessions(runs: Iterable[RunRecord]) -> dict[str, int]:
    """By name, a number that runs share which ran on one machine without a break of an hour.

    Machines of one kind differ in speed from one session to the next, so times compare within a
    session alone.
    """
    found: dict[str, int] = {}
    last: tuple[object, datetime] | None = None
    for run in sorted(runs, key=lambda run: (machine(run), run.started)):
        begun = datetime.fromisoformat(run.started)
        same = last is not None and last[0] == machine(run) and begun - last[1] < _BREAK
        found[run.name] = max(found.values(), default=0) + (not same)
        last = machine(run), begun
    return found


def machine(run: RunRecord) -> tuple[str, ...]:
    """Kind of device, cores, and version of torch."""
    environment = run.environment
    return (
        environment["device"],
        str(environment.get("cpu_count")),
        environment["packages"]["torch"],
    )
