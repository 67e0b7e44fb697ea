"""The stages of a comparison: tuning, results, and the winner's model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from advreg.lab.kinds.registry import scale_of
from advreg.lab.runs.plans import PLAN_FILE, RECORD_FILE
from advreg.lab.search import evidence
from advreg.lab.search.compare_record import Progress
from advreg.lab.search.halving import ranking, rungs
from advreg.lab.search.jobs import MODEL
from advreg.lab.search.planning import Contest, PlannedRun, Planner
from advreg.lab.search.sequential import Looks, look_sizes
from advreg.lab.search.verdicts import Evidence, Verdict, verdicts

UNDECIDED: Verdict = "undecided"
ADDED_LATER = (
    "seeds were added after the comparison had ended, so that the error rate of its verdicts is "
    "slightly higher than stated"
)


class Stages:
    """Lists of runs, one for each stage; the next stage follows when all of them have ended and
    their outcomes are in the progress.

    Args:
        planner: describes the runs.
        progress: what is known so far; each stage adds choices, verdicts and models.
        affordable: whether the budget allows further runs.
    """

    def __init__(
        self,
        planner: Planner,
        progress: Progress,
        affordable: Callable[[Sequence[PlannedRun]], bool],
    ) -> None:
        self.planner, self.progress, self.settings = planner, progress, planner.settings
        self._affordable = affordable

    def __iter__(self) -> Iterator[list[PlannedRun]]:
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
        merits = {index: [each.merit for each in mine] for index, mine in outcomes.items()}
        return ranking(merits)

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
            self.progress.control_contests = {
                (task, control.name): replace(
                    reference[task], method=control.name, control=control, tuned={}, runs={}
                )
                for task in settings.tasks
                for control in self.progress.controls
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
        tasks = self.settings.tasks
        score = sum(
            self.progress.tuning_score(self.progress.contests[task, leader.method])
            for task in tasks
        )
        scale = scale_of(self.planner.data[tasks[0]].main_metrics)
        return -score if scale.lower_is_better else score, self.planner.likely_cost(leader)

    def _results(self) -> Iterator[list[PlannedRun]]:
        first = self.settings.seeds
        for size in look_sizes(len(first), self.settings.most_seeds):
            runs = self._batch([*first, *range(max(first) + 1, max(first) + 1 + size - len(first))])
            if size > len(first) and not self._affordable(runs):
                break
            if self.progress.has_ended and any(run.settled() is None for run in runs):
                self.progress.notes = [ADDED_LATER] if size > len(first) else []
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
        return [
            self.planner.result(contest, seed)
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
        self.progress.notes += [
            f"the best model of {task} is missing: {self._why_missing(task, targets)}; the same "
            "command tries again"
            for task in self.settings.tasks
            if task not in [target.task for target in kept]
        ]
        self.progress.best = {
            target.task: target.folder.relative_to(self.planner.folder).as_posix()
            for target in kept
        }
        for contest in self.progress.contests.values():
            if first in contest.runs and not self.settings.keep_models:
                replace(contest.runs[first].run, keep="nothing").tidy()

    def _why_missing(self, task: str, targets: Sequence[PlannedRun]) -> str:
        outcomes = [self.progress.outcomes[each.folder] for each in targets if each.task == task]
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            return errors[0]
        return "its run left no model" if outcomes else f"the first run of {self.winner} failed"

    @property
    def winner(self) -> str:
        """The method that pays most; the reference if none pays."""
        paying = [name for name, found in self.progress.verdicts.items() if found == "pays"]
        means = {name: self.progress.looks[name].looks[-1].mean for name in paying}
        return max(paying, key=lambda name: means[name], default=self.settings.reference)

    def _methods(self) -> list[str]:
        """The methods that are compared with the reference."""
        return [name for name in self.settings.methods if name != self.settings.reference]


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
