"""Tasks × methods × seeds on equal terms: which method pays, and is it real?

1. *Tuning.* Every method, Standard too, has the same number of candidates. They are trained on a
   part of the training data and judged by the task's main score on the rest, which no result is
   reported on. Successive halving over tuning seeds chooses one.
2. *Results.* The chosen settings are trained on all of the training data with further seeds, which
   are added until each method pays, does not pay, or the budget ends.
3. *Controls.* Standard trained longer, and with averaged weights, are further rows.
4. *The winner's model* is kept: the run with the first seed, so that its score was not selected.

All runs are jobs of one runner, and each leaves a record, so that the same command continues a
comparison that was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.kinds.registry import scale_of
from advreg.lab.runs.plans import RECORD_FILE
from advreg.lab.search.compare_record import Pair, Progress, check_same, compare_record
from advreg.lab.search.compare_settings import CompareSettings
from advreg.lab.search.evidence import RunOutcome
from advreg.lab.search.halving import rungs
from advreg.lab.search.item_scores import scores_in_draws
from advreg.lab.search.jobs import Environment
from advreg.lab.search.planning import Contest, PlannedRun, Planner
from advreg.lab.search.pool import Job, JobResult, Remaining, Runner, Watcher
from advreg.lab.search.resampling import Array
from advreg.lab.search.stages import Stages
from advreg.records.compare import (
    COMPARE_FILE,
    CompareRecord,
    Status,
    load,
    recorded,
    score_of,
    seconds_of,
    wall_seconds,
)
from advreg.records.run import RunRecord
from advreg.records.run import load as load_run

Resample = Callable[[Path, RunRecord], Array | None]
"""The score of a finished run in each resample of its test set; none if it kept no outcomes."""


class Comparison:
    """A comparison in a folder; :meth:`open` makes one.

    Args:
        planner: of its runs.
        resample: gives the scores of a run in resamples of the test set.
    """

    def __init__(self, planner: Planner, resample: Resample = scores_in_draws) -> None:
        self.planner, self.settings, self.folder = planner, planner.settings, planner.folder
        self.progress = Progress(self._contests(self.settings.methods), Environment())
        self._resample = resample
        self._pending: dict[Path, PlannedRun] = {}
        self._spent_cost, self._started = 0.0, time.monotonic()
        self._stages = iter(Stages(planner, self.progress, self._affordable))
        self._first: list[Job] | None = None

    @classmethod
    def open(
        cls,
        settings: CompareSettings,
        folder: Path,
        notice: Callable[[str], None] = lambda _: None,
        resample: Resample = scores_in_draws,
    ) -> Comparison:
        """Load the data, check every run that is planned, and read what an earlier comparison left
        in the folder. Nothing is written yet.

        Args:
            settings: of the comparison.
            folder: of the runs.
            notice: takes what the user should know of the data.
            resample: as for the class.
        """
        found = cls(Planner(settings, folder), resample)
        for text in found.planner.notes():
            notice(text)
        if (folder / COMPARE_FILE).is_file():
            found._continue(load(folder))
        seen: set[object] = set()
        for contest in found.progress.contests.values():
            found.planner.rehearse(contest, notice, seen)
        found._first = found._advance()
        return found

    def _contests(self, methods: Sequence[str]) -> dict[Pair, Contest]:
        points = {method: self.settings.points(method) for method in self.settings.methods}
        return {
            (task, method): Contest(task, method, points.get(method, []))
            for task in self.settings.tasks
            for method in methods
        }

    def _continue(self, old: CompareRecord) -> None:
        """Check that the folder holds the same comparison, and take over its choices: they stand
        even if a candidate that failed might do better now.
        """
        check_same(old, self.record("running"), self.folder)
        self.progress.started = old.started
        self.progress.spent_before = old.spent_seconds
        self.progress.has_ended = old.status == "finished"
        for choice in old.choices:
            contest = self.progress.contests.get((choice.task, choice.method))
            same = contest is not None and len(choice.candidates) == len(contest.points)
            if contest is not None and same and choice.chosen is not None:
                contest.chosen = choice.chosen
                self.progress.old_candidates[choice.task, choice.method] = choice.candidates

    # ---- runs

    @property
    def left(self) -> Remaining:
        """The runs that are left, without controls and later seeds."""
        parts = self.plan().values()
        return Remaining(sum(part.jobs for part in parts), sum(part.cost for part in parts))

    def plan(self) -> dict[str, Remaining]:
        """The runs that are left, by task and method, without seeds that may be added later."""
        costs: dict[str, list[float]] = {}
        for pair, contest in self.progress.rows.items():
            mine = [run.cost for run in self._pending.values() if (run.task, run.method) == pair]
            if contest.problem is None:
                more = self._tuning_runs_left(contest) + max(
                    0, len(self.settings.seeds) - len(contest.runs)
                )
                mine += [self.planner.likely_cost(contest)] * more
            costs["/".join(pair)] = mine
        return {name: Remaining(len(mine), sum(mine)) for name, mine in costs.items() if mine}

    def _tuning_runs_left(self, contest: Contest) -> int:
        if contest.is_ready:
            return 0
        sizes = rungs(self.settings.candidates)
        runs = sum(min(rung.candidates, len(contest.points)) * len(rung.seeds) for rung in sizes)
        return runs - sum(map(len, contest.tuned.values()))

    def run(self, runner: Runner, watcher: Watcher) -> CompareRecord:
        """Make the runs that are left; the record in the folder is kept up to date."""
        first = self._first if self._first is not None else self._advance()
        self._started = time.monotonic()
        return recorded(
            self.record, self.folder, lambda: runner.run(first, watcher, self._take_result)
        )

    def _take_result(self, result: JobResult) -> list[Job]:
        """Note a result; returns the runs that it makes possible."""
        planned = self._pending.pop(result.job.folder)
        self._spent_cost += planned.cost
        record = result.value or _record_in(planned.folder)
        outcome = RunOutcome() if record is None else self._outcome(planned, record)
        if result.error is not None:
            lost = result.failure == "machine"
            outcome = replace(outcome, score=None, error=result.error, lost=lost)
        self.progress.outcomes[planned.folder] = outcome
        jobs = [] if self._pending else self._advance()
        self.record("running").save(self.folder)
        return jobs

    def _advance(self) -> list[Job]:
        """The jobs of the next stage that has any."""
        for stage in self._stages:
            for planned in stage:
                record = planned.settled()
                if record is None:
                    self._pending[planned.folder] = planned
                else:
                    self.progress.outcomes[planned.folder] = self._outcome(planned, record)
            if self._pending:
                return [planned.job() for planned in self._pending.values()]
        return []

    def _outcome(self, planned: PlannedRun, record: RunRecord) -> RunOutcome:
        self.progress.environment.saw(record)
        if record.outcome.status != "finished":
            return RunOutcome(None, wall_seconds(record), record.outcome.error)
        metrics = self.planner.data[planned.task].main_metrics
        score = score_of(record.outcome.metrics, metrics)
        if score is None:
            return RunOutcome(None, seconds_of(record), "its score is not a finite number")
        tuning = planned.run.held_out is not None
        draws = None if tuning else self._resample(planned.folder, record)
        lower = scale_of(metrics).lower_is_better
        return RunOutcome(score, seconds_of(record), draws=draws, lower_is_better=lower)

    def _affordable(self, runs: Sequence[PlannedRun]) -> bool:
        """Whether the budget allows further runs; finished ones are free."""
        left = [run for run in runs if run.settled() is None]
        if self.settings.limit is None or not left:
            return True
        elapsed = time.monotonic() - self._started
        rate = elapsed / self._spent_cost if self._spent_cost else 0.0
        seconds = self.progress.spent_before + elapsed + rate * sum(run.cost for run in left)
        return self.settings.limit.allows(seconds, len(self.progress.outcomes) + len(left))

    def record(self, status: Status) -> CompareRecord:
        """The record of everything known so far."""
        self.progress.spent = self.progress.spent_before + time.monotonic() - self._started
        return compare_record(status, self.planner, self.progress)


def _record_in(folder: Path) -> RunRecord | None:
    """The record of a run that failed; there is none if its process died."""
    path = folder / RECORD_FILE
    return load_run(path) if path.is_file() else None
