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

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.runs.plans import PLAN_FILE, RECORD_FILE
from advreg.lab.search import evidence
from advreg.lab.search.compare_record import Pair, Progress, check_same, compare_record
from advreg.lab.search.compare_settings import CompareSettings
from advreg.lab.search.evidence import RunOutcome
from advreg.lab.search.halving import ranking, rungs
from advreg.lab.search.jobs import MODEL, Environment
from advreg.lab.search.planning import Contest, PlannedRun, Planner
from advreg.lab.search.pool import Job, JobResult, Remaining, Runner, Watcher
from advreg.lab.search.resampling import Array
from advreg.lab.search.sequential import Looks, look_sizes
from advreg.lab.search.verdicts import Evidence, Verdict, verdicts
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

UNDECIDED: Verdict = "undecided"
Resample = Callable[[Path, RunRecord], Array | None]
"""The score of a finished run in each resample of its test set; none if it kept no outcomes."""


class Comparison:
    """A comparison in a folder; :meth:`open` makes one.

    Args:
        planner: of its runs.
        resample: gives the scores of a run in resamples of the test set.
    """

    def __init__(self, planner: Planner, resample: Resample = lambda folder, record: None) -> None:
        self.planner, self.settings, self.folder = planner, planner.settings, planner.folder
        self.progress = Progress(self._contests(self.settings.methods), Environment())
        self._resample = resample
        self._pending: dict[Path, PlannedRun] = {}
        self._spent_cost, self._started = 0.0, time.monotonic()
        self._stages = self._all_stages()
        self._first: list[Job] | None = None

    @classmethod
    def open(
        cls,
        settings: CompareSettings,
        folder: Path,
        notice: Callable[[str], None] = lambda _: None,
        resample: Resample = lambda folder, record: None,
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
                mine += [self._likely_cost(contest)] * more
            costs["/".join(pair)] = mine
        return {name: Remaining(len(mine), sum(mine)) for name, mine in costs.items() if mine}

    def _tuning_runs_left(self, contest: Contest) -> int:
        if contest.is_ready:
            return 0
        sizes = rungs(self.settings.candidates)
        runs = sum(min(rung.candidates, len(contest.points)) * len(rung.seeds) for rung in sizes)
        return runs - sum(map(len, contest.tuned.values()))

    def _likely_cost(self, contest: Contest) -> float:
        return self.planner.result(contest, self.settings.seeds[0]).cost

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
        return RunOutcome(score, seconds_of(record), draws=draws)

    # ---- stages: each is a list of runs, and the next follows when all of them have ended

    def _all_stages(self) -> Iterator[list[PlannedRun]]:
        yield from self._tuning()
        self._add_controls()
        yield from self._results()
        yield from self._keep_best()

    def _tuning(self) -> Iterator[list[PlannedRun]]:
        contests = [each for each in self.progress.contests.values() if not each.is_ready]
        left = {(each.task, each.method): list(range(len(each.points))) for each in contests}
        for rung in rungs(self.settings.candidates):
            runs = [
                self.planner.candidate(contest, index, seed)
                for seed in rung.seeds
                for place in range(rung.candidates)
                for contest in contests
                for index in left[contest.task, contest.method][place : place + 1]
            ]
            if rung.seeds.start and not self._affordable(runs):
                break
            yield self._begin(runs)
            for contest in contests:
                kept = left[contest.task, contest.method][: rung.candidates]
                left[contest.task, contest.method] = self._rank(contest, kept)
            contests = [each for each in contests if each.problem is None]
        for contest in contests:
            contest.chosen = left[contest.task, contest.method][0]

    def _begin(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Note runs in their contests before they are made."""
        for run in runs:
            contest = self.progress.rows[run.task, run.method]
            if run.candidate is None:
                contest.runs[run.seed] = run
            else:
                contest.tuned.setdefault(run.candidate, []).append(run)
        return runs

    def _rank(self, contest: Contest, candidates: Sequence[int]) -> list[int]:
        """The candidates in order, or the reason why there is no order in the contest's problem."""
        outcomes = {
            index: [self.progress.outcomes[run.folder] for run in contest.tuned[index]]
            for index in candidates
        }
        lost = [each for mine in outcomes.values() for each in mine if each.lost]
        failed = [mine[-1] for mine in outcomes.values() if mine[-1].score is None]
        if lost:
            contest.problem = (
                f"the choice is open, because a candidate has no result: {lost[0].error}; the "
                "same command tries it again"
            )
        elif len(failed) == len(candidates):
            contest.problem = (
                f"none of its {len(candidates)} candidates could be trained; the first: "
                f"{failed[0].error}"
            )
        scores = {index: [each.score for each in mine] for index, mine in outcomes.items()}
        return ranking(scores)

    def _add_controls(self) -> None:
        """Plan the rows that are no methods; none where Standard is not the reference."""
        settings, contests = self.settings, self.progress.contests
        reference = {task: contests[task, settings.reference] for task in settings.tasks}
        if (
            settings.controls
            and settings.reference == "standard"
            and all(each.is_ready for each in reference.values())
        ):
            self.progress.controls = self.planner.controls(self._leader(), reference)
            names = [control.name for control in self.progress.controls]
            self.progress.control_contests = {
                (task, name): replace(reference[task], method=name, tuned={}, runs={})
                for task in settings.tasks
                for name in names
            }

    def _leader(self) -> Contest | None:
        """The method with the best tuning score over the tasks; without tuning the longest."""
        first = self.settings.tasks[0]
        methods = [
            method
            for method in self._methods()
            if all(self.progress.contests[task, method].is_ready for task in self.settings.tasks)
        ]
        contests = [self.progress.contests[first, method] for method in methods]
        return max(contests, key=self._strength, default=None)

    def _strength(self, leader: Contest) -> tuple[float, float]:
        scores = [
            outcome.score or 0.0
            for task in self.settings.tasks
            for contest in [self.progress.contests[task, leader.method]]
            for run in contest.tuned.get(contest.chosen or 0, [])
            for outcome in [self.progress.outcomes[run.folder]]
        ]
        return sum(scores) / max(len(scores), 1), self._likely_cost(leader)

    def _results(self) -> Iterator[list[PlannedRun]]:
        first = self.settings.seeds
        for size in look_sizes(len(first), self.settings.most_seeds):
            runs = self._batch([*first, *range(max(first) + 1, max(first) + 1 + size - len(first))])
            if size > len(first) and not self._affordable(runs):
                break
            yield self._begin(runs)
            if self._look():
                break
        self.progress.looks = {
            name: replace(looks, ended=True) for name, looks in self.progress.looks.items()
        }
        self._judge()

    def _batch(self, seeds: Sequence[int]) -> list[PlannedRun]:
        """The runs with these seeds that are not planned yet, of all rows that are undecided; seeds
        in the outer loop, so that changes of the machine's load affect all methods alike.
        """
        decided = {name for name, verdict in self.progress.verdicts.items() if verdict != UNDECIDED}
        controls = {control.name: control for control in self.progress.controls}
        return [
            self.planner.result(contest, seed, controls.get(contest.method))
            for seed in seeds
            for contest in self.progress.rows.values()
            if contest.is_ready and seed not in contest.runs and contest.method not in decided
        ]

    def _look(self) -> bool:
        """Look at the gains of all methods; whether all verdicts are reached."""
        reference = self.progress.outcomes_of(self.settings.reference)
        for method in self._methods():
            if self.progress.verdicts.get(method, UNDECIDED) == UNDECIDED:
                look = evidence.look(self.progress.outcomes_of(method), reference)
                before = self.progress.looks[method].looks if method in self.progress.looks else []
                if look is not None and all(each.seeds < look.seeds for each in before):
                    self.progress.looks[method] = Looks([*before, look], self.settings.most_seeds)
        self._judge()
        return all(
            verdict != UNDECIDED or self.progress.flaw(method) is not None
            for method, verdict in self.progress.verdicts.items()
        )

    def _judge(self) -> None:
        margin = evidence.margin(self.progress.outcomes_of(self.settings.reference))
        found = {
            method: Evidence(self.progress.looks.get(method), margin, self.progress.flaw(method))
            for method in self._methods()
        }
        self.progress.verdicts = verdicts(found, self.settings.alpha)

    def _affordable(self, runs: Sequence[PlannedRun]) -> bool:
        """Whether the budget allows further runs; finished ones are free."""
        left = [run for run in runs if run.settled() is None]
        if self.settings.budget is None or not left:
            return True
        elapsed = time.monotonic() - self._started
        rate = elapsed / self._spent_cost if self._spent_cost else 0.0
        seconds = self.progress.spent_before + elapsed + rate * sum(run.cost for run in left)
        return self.settings.budget.allows(seconds, len(self.progress.outcomes) + len(left))

    # ---- the winner

    def _keep_best(self) -> Iterator[list[PlannedRun]]:
        """Put the winner's first run into the folder of the best model; train it again if its
        model is missing.
        """
        first = self.settings.seeds[0]
        runs = [
            self.progress.contests[task, self.winner].runs.get(first)
            for task in self.settings.tasks
        ]
        sources = [
            run
            for run in runs
            if run is not None and self.progress.outcomes[run.folder].score is not None
        ]
        targets = [self.planner.best(source) for source in sources]
        for source, target in zip(sources, targets, strict=True):
            _move_model(source.folder, target.folder)
        yield [target for target in targets if not (target.folder / MODEL).is_dir()]
        kept = [target for target in targets if (target.folder / MODEL).is_dir()]
        self.progress.best = {
            target.task: target.folder.relative_to(self.folder).as_posix() for target in kept
        }
        for contest in self.progress.contests.values():
            if first in contest.runs and not self.settings.keep_models:
                replace(contest.runs[first].run, keep="nothing").tidy()

    @property
    def winner(self) -> str:
        """The method that pays most; the reference if none pays."""
        paying = [name for name, found in self.progress.verdicts.items() if found == "pays"]
        return max(
            paying,
            key=lambda name: self.progress.looks[name].looks[-1].mean,
            default=self.reference,
        )

    @property
    def reference(self) -> str:
        return self.settings.reference

    # ---- what is known

    def _methods(self) -> list[str]:
        """The methods that are compared with the reference."""
        return [name for name in self.settings.methods if name != self.settings.reference]

    def record(self, status: Status) -> CompareRecord:
        """The record of everything known so far."""
        self.progress.spent = self.progress.spent_before + time.monotonic() - self._started
        return compare_record(status, self.planner, self.progress)


def _move_model(source: Path, target: Path) -> None:
    """Copy a run with its model, unless the target is a copy of it; what else is there goes."""
    same = (target / PLAN_FILE).is_file() and (
        (target / PLAN_FILE).read_bytes() == (source / PLAN_FILE).read_bytes()
    )
    if same and (target / MODEL).is_dir():
        return
    if (source / MODEL).is_dir():
        shutil.rmtree(target, ignore_errors=True)
        staging = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(source, staging)
        staging.rename(target)
    elif not same or (target / RECORD_FILE).is_file():
        shutil.rmtree(target, ignore_errors=True)


def _record_in(folder: Path) -> RunRecord | None:
    """The record of a run that failed; there is none if its process died."""
    path = folder / RECORD_FILE
    return load_run(path) if path.is_file() else None
