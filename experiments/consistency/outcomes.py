"""The contests' records as outcomes: gains by seed in what a contest is judged by, and verdicts
once all are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from cells import BySeed, Cell, Records, leader
from contests import STANDARD, Contest, Contestant
from inference import Gain, differences, holm, pays_for_price, replaces, verdict

TWICE = "twice the epochs"
POOLED = (
    "understanding",
    "confirmation",
)  # judged by the mean over their tasks, in units of Standard's deviation


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
        return all(
            sum(cell.done for cell in part.values()) == self.asked
            for part in (self.cells, self.standard)
        )

    @property
    def is_method(self) -> bool:
        """A control takes no part in Holm's correction."""
        return self.contestant.method != STANDARD

    @property
    def diverged(self) -> int:
        """Runs without a score, its own or Standard's: their seeds have no gain."""
        return sum(
            cell.diverged for cells in (self.cells, self.standard) for cell in cells.values()
        )

    @cached_property
    def gains(self) -> BySeed:
        """Over Standard by seed, of the seeds with scores on all tasks."""
        parts = []
        for task, cell in self.cells.items():
            theirs = self.standard[task]
            unit = theirs.deviation if self.pooled else 1.0
            parts.append(
                {
                    seed: gain / unit
                    for seed, gain in differences(cell.scores, theirs.scores).items()
                }
            )
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

    @cached_property
    def step_time(self) -> float | None:
        """A step's time over Standard's median on the same task in the same session: the median of
        all runs.

        None where no run of Standard's was made in the same session.
        """
        found = []
        for task, cell in self.cells.items():
            for session in set(cell.sessions.values()):
                if theirs := self.standard[task].step_seconds(session):
                    found += [seconds / median(theirs) for seconds in cell.step_seconds(session)]
        return median(found) if found else None

    @property
    def run_time(self) -> float | None:
        """The same of a whole training."""
        longer = fmean(
            cell.steps() / self.standard[task].steps() for task, cell in self.cells.items()
        )
        return None if self.step_time is None else self.step_time * longer

    def on(self, task: str) -> Entry | None:
        """The same with one of its tasks alone, in points; none before its candidate is chosen."""
        if task not in self.cells:
            return None
        return Entry(
            self.contestant,
            {task: self.cells[task]},
            {task: self.standard[task]},
            False,
            1,
            self.seeds,
        )

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
        over_twice: the gain over Standard with twice the epochs, where the contest has that
            control.
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
        """How many results are planned, Standard's among them."""
        most = leader(self.contest).finalists
        tuned = [entry for entry in self.entries.values() if len(entry.contestant.variants) > 1]
        out = 0 if most is None else max(0, len(tuned) - most)
        return sum(entry.asked for entry in self.entries.values()) + (len(self.tasks) - out) * len(
            self.contest.seeds
        )

    @property
    def decimals(self) -> int:
        """How many decimals gains have in text."""
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


def entries(
    contest: Contest, tasks: Sequence[str], cells: Mapping[str, Mapping[str, Cell]]
) -> dict[str, Entry]:
    """The contestants of an outcome, without the tuned ones that are no finalists."""
    found = {}
    for each in leader(contest).contestants:
        able = [task for task in tasks if task not in each.without]
        if not able or all(_dropped(contest, cells[task], each.name) for task in able):
            continue
        mine = {task: cells[task][each.name] for task in able if each.name in cells[task]}
        standard = {task: cells[task][STANDARD] for task in mine}
        found[each.name] = Entry(
            each, mine, standard, len(tasks) > 1, len(able), len(contest.seeds)
        )
    return found


def _dropped(contest: Contest, chosen: Mapping[str, Cell], name: str) -> bool:
    """Whether the finalists are known and a contestant is none of them."""
    tuned = [each.name for each in leader(contest).contestants if len(each.variants) > 1]
    return (
        leader(contest).finalists is not None
        and name not in chosen
        and any(each in chosen for each in tuned)
    )


Place = tuple[tuple[str, ...], str]  # the tasks of an outcome, and a method


def verdicts(compared: Mapping[tuple[str, ...], Mapping[str, Entry]]) -> dict[Place, Verdict]:
    """Verdicts on all methods of a contest with all seeds."""
    methods = {
        (tasks, name): each
        for tasks, mine in compared.items()
        for name, each in mine.items()
        if each.is_method
    }
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


def judged(
    entry: Entry, gain: Gain, corrected: float, over_twice: Gain | None, over: float | None
) -> Verdict:
    text = verdict(gain, corrected, entry.deviation, entry.diverged)
    tested = None if over_twice is None or over is None else (over_twice, over)
    return Verdict(corrected, text, pays_for_price(text, entry.step_time, tested), over_twice)
