"""The runs that a comparison can make, described before any of them begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.lab.runs.workloads import Workload, load_workload
from advreg.lab.search.compare_settings import SEARCH_SEED, CompareSettings
from advreg.lab.search.grids import Point
from advreg.lab.search.jobs import HeldOut, Keep, TrainRun
from advreg.lab.search.pool import Job
from advreg.records.run import RunRecord

FIRST_TUNING_SEED = 1000  # the seeds of results are below
LEAST_TUNING_ROWS = 1000
_HELD_OUT_SHARE = 0.1
BEST = "best"
EMA_DECAY = 0.98  # suits runs of a few hundred updates; the average warms up by itself


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Args:
        task, method: what it belongs to; a control by its name.
        run: the training.
        fingerprint: of its data.
        cost: the time it takes, relative to the other runs.
        candidate: index of the candidate that it tunes; none: it has the chosen settings.
    """

    task: str
    method: str
    run: TrainRun
    fingerprint: str
    cost: float
    candidate: int | None = None

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def folder(self) -> Path:
        return self.run.folder

    def settled(self) -> RunRecord | None:
        """Its record, if it need not run again."""
        return self.run.settled(self.fingerprint)

    def job(self) -> Job:
        name = f"{self.task}/{self.method}/{self.folder.name}"
        return Job(name, self.folder, self.run, self.cost)


@dataclass(frozen=True)
class Control:
    """Standard with other settings, for comparison with the methods.

    Args:
        name: in folders and records.
        title: in tables.
        changes: settings by task.
    """

    name: str
    title: str
    changes: Mapping[str, Mapping[str, Any]]


@dataclass
class Contest:
    """One method, or one control, on one task.

    Args:
        task, method: which.
        points: the candidates; none without tuning.
        control: what makes it one.
        chosen: index of the best candidate.
        problem: why none could be chosen.
        tuned: the runs of each candidate.
        runs: with the chosen settings, by seed.
    """

    task: str
    method: str
    points: list[Point]
    control: Control | None = None
    chosen: int | None = None
    problem: str | None = None
    tuned: dict[int, list[PlannedRun]] = field(default_factory=dict)
    runs: dict[int, PlannedRun] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether its settings are known."""
        return self.problem is None and (self.chosen is not None or not self.points)

    @property
    def point(self) -> Point:
        """The chosen candidate, or the likely one."""
        return self.points[self.chosen or 0] if self.points else {}


class Planner:
    """Describes the runs of a comparison.

    Args:
        settings: of the comparison.
        folder: of all runs.
    """

    def __init__(self, settings: CompareSettings, folder: Path) -> None:
        self.data = {task: load_workload(settings.bases[task]) for task in settings.tasks}
        untunable = frozenset().union(*(data.untunable for data in self.data.values()))
        self.untuned = [name for name in settings.grid.common if name in untunable]
        grid = settings.grid.without(self.untuned, {})
        self.settings, self.folder = replace(settings, grid=grid), folder
        self._tuning: dict[tuple[str, int], Workload] = {}

    def notes(self) -> list[str]:
        """What the user should know of the data."""
        notes = [text for data in self.data.values() for text in data.notes]
        notes += [f"{name} is not tuned, since these data do not allow it" for name in self.untuned]
        return list(dict.fromkeys(notes))

    def held_out(self, task: str, seed: int) -> HeldOut:
        """The training rows to tune on: a tenth, at least 1,000, and other ones for each tuning
        seed. Of fewer than 2,000 rows all serve, in two folds: every second seed has the rows that
        the seed before it trained on.
        """
        rows = self.data[task].sizes["train"]
        if rows < 2 * LEAST_TUNING_ROWS:
            return HeldOut(0.5, SEARCH_SEED + seed // 2, rows // 2, swapped=seed % 2 == 1)
        return HeldOut(max(_HELD_OUT_SHARE, LEAST_TUNING_ROWS / rows), SEARCH_SEED + seed)

    def tuning_data(self, task: str, seed: int = 0) -> Workload:
        """The data of a tuning seed."""
        if (task, seed) not in self._tuning:
            self._tuning[task, seed] = self.held_out(task, seed).of(self.data[task])
        return self._tuning[task, seed]

    def candidate(self, contest: Contest, index: int, seed: int) -> PlannedRun:
        """A tuning run; seeds count from 0."""
        settings = self.settings.settings_for(contest.task, contest.method, contest.points[index])
        name = f"candidate-{index}-seed-{FIRST_TUNING_SEED + seed}"
        run = TrainRun(
            settings=settings,
            method=contest.method,
            seed=FIRST_TUNING_SEED + seed,
            folder=self.folder / contest.task / contest.method / name,
            held_out=self.held_out(contest.task, seed),
            keep="all" if self.settings.keep_models else "nothing",
        )
        planned = self._planned(contest, run, self.tuning_data(contest.task, seed))
        return replace(planned, candidate=index)

    def result(self, contest: Contest, seed: int) -> PlannedRun:
        """A run with the chosen settings; the first seed's keeps its model, which may win."""
        control = contest.control
        method = contest.method if control is None else self.settings.reference
        settings = self.settings.settings_for(contest.task, method, contest.point)
        if control is not None:
            settings = replace(settings, **control.changes[contest.task])
        may_win = control is None and seed == self.settings.seeds[0]
        keep: Keep = "all" if self.settings.keep_models else "model" if may_win else "nothing"
        folder = self.folder / contest.task / contest.method / f"seed-{seed}"
        run = TrainRun(settings, method, seed, folder, keep=keep)
        return self._planned(contest, run, self.data[contest.task])

    def likely_cost(self, contest: Contest) -> float:
        """The cost of a run with the chosen settings, or the likely ones."""
        return self.result(contest, self.settings.seeds[0]).cost

    def best(self, winner: PlannedRun) -> PlannedRun:
        """The winner's run in the folder of the best model."""
        several = len(self.settings.tasks) > 1
        folder = self.folder / BEST / winner.task if several else self.folder / BEST
        return replace(winner, run=replace(winner.run, folder=folder, keep="model"))

    def _planned(self, contest: Contest, run: TrainRun, data: Workload) -> PlannedRun:
        cost = run.cost(data.sizes["train"])
        return PlannedRun(contest.task, contest.method, run, data.fingerprint, cost)

    def controls(self, leader: Contest | None, reference: Mapping[str, Contest]) -> list[Control]:
        """Standard trained as long as the method that leads the tuning, where that takes longer;
        and with averaged weights.
        """
        longer = {
            task: {"epochs": self._equal_epochs(leader, each)}
            for task, each in reference.items()
            if leader is not None
        }
        averaged = {
            task: {"weight_ema": EMA_DECAY}
            for task in reference
            if self.settings.bases[task].weight_ema is None
        }
        found = []
        factors = [longer[task]["epochs"] / self._epochs(reference[task]) for task in longer]
        if any(factor > 1 for factor in factors):
            title = f"Standard, {factors[0]:.3g} × the epochs"
            found.append(Control("standard-longer", title, longer))
        if averaged:
            found.append(Control("standard-ema", f"Standard, EMA {EMA_DECAY}", averaged))
        return [control for control in found if control.changes.keys() == reference.keys()]

    def _epochs(self, contest: Contest) -> int:
        method, point = contest.method, contest.point
        return self.settings.settings_for(contest.task, method, point).epochs

    def _equal_epochs(self, leader: Contest, reference: Contest) -> int:
        """The epochs with which the reference makes as many forward passes as the leader, but no
        fewer than its own.
        """
        tuned = "epochs" in self.settings.grid.common
        epochs = self._epochs(leader if tuned else reference)
        passes = self._passes(leader) / self._passes(reference)
        return max(self._epochs(reference), math.ceil(epochs * passes))

    def _passes(self, contest: Contest) -> float:
        """Forward passes of a step."""
        settings = self.settings.settings_for(contest.task, contest.method, contest.point)
        return settings.method(contest.method).passes().forward

    def rehearse(self, contest: Contest, notice: Callable[[str], None], seen: set[Any]) -> None:
        """Build a run of each task, method and dropout up to its first step, so that errors show
        before anything is trained.
        """
        for point in contest.points or [{}]:
            run = self.settings.settings_for(contest.task, contest.method, point)
            kinds = {
                contest.task,
                contest.method,
                ("dropout", getattr(run, "encoder_dropout", None)),
            }
            if kinds - seen:
                self.data[contest.task].rehearse(run, contest.method, self.folder, notice)
            seen |= kinds
