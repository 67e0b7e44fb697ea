"""The contests' records as outcomes: gains by seed in what a contest is judged by, and verdicts once all are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, stdev

from contests import CONTESTS, STANDARD, Contest, Contestant
from inference import Gain, differences, holm, pays_for_price, replaces, verdict
from scoring import primary_score, scores
from stages import RESULT, TUNE, Planned, Point, finalists

from advreg.record import RunRecord

TWICE = "twice the epochs"
POOLED = ("understanding", "confirmation")  # judged by the mean over their tasks, in units of Standard's deviation
_TEST_SETS = ("2016", "2017")  # in translation

BySeed = dict[int, float]


@dataclass(frozen=True)
class Cell:
    """The results of one contestant on one task.

    Args:
        candidate: the one that was chosen.
        point: its settings.
        runs: those that have a score, by seed.
        diverged: how many others there are.
    """

    candidate: str
    point: Point
    runs: Mapping[int, RunRecord]
    diverged: int

    @property
    def done(self) -> int:
        return len(self.runs) + self.diverged

    @cached_property
    def scores(self) -> BySeed:
        return {seed: primary_score(run) for seed, run in self.runs.items()}

    @property
    def deviation(self) -> float:
        """Of the scores over seeds."""
        return stdev(self.scores.values()) if len(self.runs) > 1 else math.nan

    def calibration(self, name: str) -> BySeed:
        """A measure by seed, in translation the mean of the test sets; nothing where a task has no classes."""
        found = {}
        for seed, run in self.runs.items():
            metrics = run.outcome.metrics
            values = [metrics[key] for key in (name, *(f"{name}_{each}" for each in _TEST_SETS)) if key in metrics]
            if values:
                found[seed] = fmean(math.nan if value is None else value for value in values)
        return found

    def step_seconds(self) -> BySeed:
        return {seed: run.outcome.timing["seconds_per_step"] or math.nan for seed, run in self.runs.items()}

    def run_seconds(self) -> BySeed:
        """Of all steps of a training."""
        return {seed: each * (self.runs[seed].outcome.timing["steps"] or math.nan)
                for seed, each in self.step_seconds().items()}  # fmt: skip

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

    def of(self, contest: Contest) -> list[RunRecord]:
        return [record for name, record in self.by_name.items() if name.startswith(f"{contest.name}/")]

    def cells(self, contest: Contest, task: str) -> dict[str, Cell]:
        """By contestant; only runs with the candidate that was chosen."""
        found = {}
        for name, (candidate, point) in finalists(contest, task, self.scores).items():
            keys = {
                seed: Planned(contest.name, task, RESULT, name, candidate, seed, point).key for seed in contest.seeds
            }
            made = {seed: self.by_name[key] for seed, key in keys.items() if key in self.by_name}
            scored = {seed: run for seed, run in made.items() if is_scored(run)}
            found[name] = Cell(candidate, point, scored, len(made) - len(scored))
        return found

    def tuned(self, contest: Contest, task: str) -> dict[str, tuple[int, int]]:
        """How many candidates are done of each contestant that is tuned, and how many it has."""
        wanted = {STANDARD: len(contest.standard)}
        wanted |= {name: len(each.variants) for name, each in contestants(contest, task).items()}
        return {
            name: (sum(key.startswith("/".join((contest.name, task, TUNE, name, ""))) for key in self.scores), count)
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


# ---- one contestant in one outcome


@dataclass(frozen=True)
class Entry:
    """A contestant against Standard.

    Args:
        contestant: a method or a control.
        cells: by task, of the tasks whose candidate is chosen.
        standard: Standard's cells of these tasks.
        pooled: whether gains are means over the tasks, in units of Standard's deviation over seeds.
        tasks: how many it is to have.
        seeds: how many each task is to have.
    """

    contestant: Contestant
    cells: Mapping[str, Cell]
    standard: Mapping[str, Cell]
    pooled: bool
    tasks: int
    seeds: int

    @property
    def asked(self) -> int:
        """How many runs it is to have."""
        return self.tasks * self.seeds

    @property
    def complete(self) -> bool:
        """Whether all runs are done, its own and Standard's."""
        return all(sum(cell.done for cell in part.values()) == self.asked for part in (self.cells, self.standard))

    @property
    def is_method(self) -> bool:
        """A control takes no part in Holm's correction."""
        return self.contestant.method != STANDARD

    @property
    def diverged(self) -> int:
        """Runs without a score, its own or Standard's: their seeds have no gain."""
        return sum(cell.diverged for cells in (self.cells, self.standard) for cell in cells.values())

    @cached_property
    def gains(self) -> BySeed:
        """Over Standard by seed, of the seeds with scores on all tasks."""
        parts = []
        for task, cell in self.cells.items():
            theirs = self.standard[task]
            unit = theirs.deviation if self.pooled else 1.0
            parts.append({seed: gain / unit for seed, gain in differences(cell.scores, theirs.scores).items()})
        shared = [seed for seed in parts[0] if all(seed in part for part in parts)] if parts else []
        return {seed: fmean(part[seed] for part in parts) for seed in shared}

    @cached_property
    def gain(self) -> Gain | None:
        """Once all seeds are done."""
        return Gain.of(self.gains) if self.complete else None

    @property
    def mean(self) -> float:
        """The mean gain; −∞ while seeds are missing."""
        return -math.inf if self.gain is None else self.gain.mean

    @property
    def strength(self) -> float:
        """The mean gain over Standard's deviation, which compares gains in different units."""
        return self.mean / self.deviation

    @property
    def deviation(self) -> float:
        """Standard's over seeds, in the units of the gains."""
        return 1.0 if self.pooled else next(iter(self.standard.values())).deviation

    @property
    def step_time(self) -> float:
        """A step's time over Standard's with the same seed, median over seeds and tasks."""
        return self._time(Cell.step_seconds)

    @property
    def run_time(self) -> float:
        """The same of all steps of a training."""
        return self._time(Cell.run_seconds)

    def _time(self, seconds: Callable[[Cell], BySeed]) -> float:
        return median(
            mine / theirs[seed]
            for task, cell in self.cells.items()
            for theirs in [seconds(self.standard[task])]
            for seed, mine in seconds(cell).items()
            if seed in theirs
        )

    def on(self, task: str) -> Entry | None:
        """The same with one of its tasks alone, in points; none before its candidate is chosen."""
        if task not in self.cells:
            return None
        return Entry(self.contestant, {task: self.cells[task]}, {task: self.standard[task]}, False, 1, self.seeds)

    def passes(self, kind: str) -> float:
        return fmean(cell.passes(kind) for cell in self.cells.values())

    @property
    def one_pass(self) -> bool:
        return self.passes("forward") <= 1


# ---- one comparison with verdicts


@dataclass(frozen=True)
class Verdict:
    """What the rules say of a method.

    Args:
        corrected: the p value after Holm's correction.
        text: pays, does not pay, or undecided.
        for_price: whether it pays for its price; ``None`` where that was not tested.
        over_twice: the gain over Standard with twice the epochs, where the contest has that control.
    """

    corrected: float
    text: str
    for_price: bool | None
    over_twice: Gain | None


@dataclass(frozen=True)
class Outcome:
    """What a contest is judged by: one of its tasks, or the mean over them.

    Args:
        contest: whose outcome it is.
        tasks: one or several.
        standard: Standard's cells by task, where its candidate is chosen.
        entries: the contestants that have results or wait for them.
        verdicts: of methods with all seeds.
    """

    contest: Contest
    tasks: tuple[str, ...]
    standard: Mapping[str, Cell]
    entries: Mapping[str, Entry]
    verdicts: Mapping[str, Verdict]

    @property
    def pooled(self) -> bool:
        return len(self.tasks) > 1

    @property
    def key(self) -> str:
        return key_of(self.contest, self.tasks)

    @property
    def methods(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.entries.items() if entry.is_method}

    @property
    def complete(self) -> bool:
        return bool(self.entries) and all(entry.complete for entry in self.entries.values())

    @property
    def asked(self) -> int:
        """How many results there are to be, Standard's too; before the finalists are known, all that are tuned wait."""
        most = leader(self.contest).finalists
        tuned = [entry for entry in self.entries.values() if len(entry.contestant.variants) > 1]
        out = 0 if most is None else max(0, len(tuned) - most)
        return sum(entry.asked for entry in self.entries.values()) + (len(self.tasks) - out) * len(self.contest.seeds)

    @property
    def decimals(self) -> int:
        """Of gains in text."""
        return 2 if self.pooled or self.contest.kind == "translation" else 1

    def replaced(self) -> dict[tuple[str, str], Gain]:
        """By one-pass method and other method: the gain minus three quarters of the other's."""
        done = {name: entry for name, entry in self.methods.items() if entry.gain is not None}
        return {
            (name, other): found
            for name, mine in done.items()
            for other, theirs in done.items()
            if mine.one_pass and not theirs.one_pass
            if (found := replaces(mine.gains, theirs.gains)) is not None
        }


def key_of(contest: Contest, tasks: Sequence[str]) -> str:
    return contest.name if len(tasks) > 1 else f"{contest.name}/{tasks[0]}"


def groups(contest: Contest) -> list[tuple[str, ...]]:
    """The tasks of each outcome."""
    return [tuple(contest.tasks)] if contest.name in POOLED else [(task,) for task in contest.tasks]


def outcomes(found: Records, contest: Contest) -> list[Outcome]:
    """With verdicts; Holm's correction is over the methods in all outcomes of a contest."""
    cells = {task: found.cells(contest, task) for task in contest.tasks}
    compared = {tasks: entries(contest, tasks, cells) for tasks in groups(contest)}
    judged = verdicts(compared)
    return [
        Outcome(
            contest,
            tasks,
            {task: cells[task][STANDARD] for task in tasks if STANDARD in cells[task]},
            mine,
            {name: judged[tasks, name] for name in mine if (tasks, name) in judged},
        )
        for tasks, mine in compared.items()
    ]


def entries(contest: Contest, tasks: Sequence[str], cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, Entry]:
    """The contestants of an outcome; those that were tuned and are no finalists are left out."""
    found = {}
    for each in leader(contest).contestants:
        able = [task for task in tasks if task not in each.without]
        if not able or all(_dropped(contest, cells[task], each.name) for task in able):
            continue
        mine = {task: cells[task][each.name] for task in able if each.name in cells[task]}
        standard = {task: cells[task][STANDARD] for task in mine}
        found[each.name] = Entry(each, mine, standard, len(tasks) > 1, len(able), len(contest.seeds))
    return found


def _dropped(contest: Contest, chosen: Mapping[str, Cell], name: str) -> bool:
    """Whether the finalists are known and a contestant is none of them."""
    tuned = [each.name for each in leader(contest).contestants if len(each.variants) > 1]
    return leader(contest).finalists is not None and name not in chosen and any(each in chosen for each in tuned)


Place = tuple[tuple[str, ...], str]  # the tasks of an outcome, and a method


def verdicts(compared: Mapping[tuple[str, ...], Mapping[str, Entry]]) -> dict[Place, Verdict]:
    """Of all methods of a contest that have all seeds."""
    methods = {(tasks, name): each for tasks, mine in compared.items() for name, each in mine.items() if each.is_method}
    gains = {place: each.gain for place, each in methods.items() if each.gain is not None}
    doubled = {}
    for place in gains:
        twice = compared[place[0]].get(TWICE)
        if twice is not None and twice.gain is not None:
            doubled[place] = Gain.of(differences(methods[place].gains, twice.gains))
    corrected, over = (
        holm({place: gain.p for place, gain in each.items() if gain is not None}, len(methods))
        for each in (gains, doubled)
    )
    return {
        place: judged(methods[place], gain, corrected[place], doubled.get(place), over.get(place))
        for place, gain in gains.items()
    }


def judged(entry: Entry, gain: Gain, corrected: float, over_twice: Gain | None, over: float | None) -> Verdict:
    text = verdict(gain, corrected, entry.deviation, entry.diverged)
    tested = None if over_twice is None or over is None else (over_twice, over)
    return Verdict(corrected, text, pays_for_price(text, entry.step_time, tested), over_twice)
