"""What is known of a comparison, and its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from advreg.lab.kinds.registry import scale_of
from advreg.lab.runs.settings import SettingsError, decisive
from advreg.lab.search import evidence
from advreg.lab.search.compare_settings import SEARCH_SEED
from advreg.lab.search.conclusion import conclusion
from advreg.lab.search.evidence import RunOutcome
from advreg.lab.search.grids import Grid
from advreg.lab.search.jobs import Environment
from advreg.lab.search.planning import (
    FIRST_TUNING_SEED,
    LEAST_TUNING_ROWS,
    Contest,
    Control,
    PlannedRun,
    Planner,
)
from advreg.lab.search.sequential import Look, Looks
from advreg.lab.search.verdicts import Verdict
from advreg.records.compare import (
    Candidate,
    Choice,
    ComparedRun,
    ComparedTask,
    CompareRecord,
    MethodGain,
    Status,
    TunedRun,
)
from advreg.records.environment import now

Pair = tuple[str, str]  # a task and a method


@dataclass
class Progress:
    """What is known of a comparison so far.

    Args:
        contests: of the methods, by task and method.
        environment: of all runs.
        outcomes: by folder of the run.
        controls: rows that are no methods, and their contests.
        looks, verdicts: of each method.
        best: folders of the winner's models, by task.
        old_candidates: those behind the choices that an earlier session made.
        started: when the comparison began.
        has_ended: whether an earlier session finished it.
        notes: caveats for the reader.
        spent_before, spent: seconds, before this session and in all.
    """

    contests: dict[Pair, Contest]
    environment: Environment
    outcomes: dict[Path, RunOutcome] = field(default_factory=dict)
    controls: list[Control] = field(default_factory=list)
    control_contests: dict[Pair, Contest] = field(default_factory=dict)
    looks: dict[str, Looks] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    best: dict[str, str] = field(default_factory=dict)
    old_candidates: dict[Pair, list[Candidate]] = field(default_factory=dict)
    started: str = field(default_factory=now)
    has_ended: bool = False
    notes: list[str] = field(default_factory=list)
    spent_before: float = 0.0
    spent: float = 0.0

    @property
    def rows(self) -> dict[Pair, Contest]:
        """The contests of methods and of controls."""
        return {**self.contests, **self.control_contests}

    def outcomes_of(self, method: str) -> dict[str, dict[int, RunOutcome]]:
        """The outcomes of a method or a control, by task and seed."""
        return {
            task: {
                seed: self.outcomes[run.folder]
                for seed, run in contest.runs.items()
                if run.folder in self.outcomes
            }
            for (task, name), contest in self.rows.items()
            if name == method
        }

    def tuning_score(self, contest: Contest) -> float:
        """The score of the chosen candidate on held-out training data; 0 without tuning."""
        if contest.chosen is None:
            return 0.0
        old = self.old_candidates.get((contest.task, contest.method))
        if old is not None:
            return old[contest.chosen].score or 0.0
        return _candidate(contest, contest.chosen, self).score or 0.0

    def flaw(self, method: str) -> str | None:
        """Why a method cannot pay: it has no choice, or a run failed."""
        mine = [contest for (_, name), contest in self.rows.items() if name == method]
        problems = [contest.problem for contest in mine if contest.problem is not None]
        return problems[0] if problems else evidence.flaw(self.outcomes_of(method))


def compare_record(status: Status, planner: Planner, progress: Progress) -> CompareRecord:
    """The record of a comparison."""
    settings = planner.settings
    grid = settings.grid if settings.candidates > 1 else Grid()
    gains = list(_gains(planner, progress))
    return CompareRecord(
        status=status,
        settings={
            "methods": settings.methods,
            "seeds": settings.seeds,
            "model": settings.any_base.model,
            "max_seeds": settings.most_seeds,
            "alpha": settings.alpha,
        },
        grid={
            "common": {name: list(values) for name, values in grid.common.items()},
            **{
                name: {key: list(values) for key, values in own.items()}
                for name, own in grid.methods.items()
            },
        },
        search=_search(planner),
        reference=settings.reference,
        tasks=[_task(planner, task) for task in settings.tasks],
        choices=[_choice(contest, grid, progress) for contest in progress.contests.values()],
        runs=[
            run
            for contest in progress.rows.values()
            for run in _runs(contest, planner, progress.outcomes)
        ],
        notes=[*planner.notes(), *progress.notes],
        controls={control.name: control.title for control in progress.controls},
        gains=gains,
        conclusion=_conclusion(planner, progress, gains) if status == "finished" else None,
        best=dict(progress.best),
        spent_seconds=progress.spent,
        environment=progress.environment.as_dict(),
        started=progress.started,
        finished=now(),
    )


def _search(planner: Planner) -> dict[str, Any]:
    candidates = planner.settings.candidates
    return {
        "candidates": candidates,
        "held_out": f"a tenth, {LEAST_TUNING_ROWS} rows at least; two folds of fewer"
        if candidates > 1
        else None,
        "seed": SEARCH_SEED,
        "first_tuning_seed": FIRST_TUNING_SEED,
        "judged_by": "successive halving over tuning seeds, by the main score on training data "
        "held out; ties go to the first",
    }


def _task(planner: Planner, task: str) -> ComparedTask:
    data, tuned = planner.data[task], planner.settings.candidates > 1
    return ComparedTask(
        name=task,
        title=data.title,
        main_metrics=list(data.main_metrics),
        scored_on=data.scored_on,
        fingerprint=data.fingerprint,
        sizes=data.sizes,
        tuning_sizes=planner.tuning_data(task).sizes if tuned else {},
        settings=planner.settings.shown(task),
    )


def _choice(contest: Contest, grid: Grid, progress: Progress) -> Choice:
    old = progress.old_candidates.get((contest.task, contest.method))
    return Choice(
        task=contest.task,
        method=contest.method,
        grid_size=grid.size(contest.method),
        candidates=old or [_candidate(contest, i, progress) for i in range(len(contest.points))],
        chosen=contest.chosen,
        problem=contest.problem,
    )


def _candidate(contest: Contest, index: int, progress: Progress) -> Candidate:
    runs = [_tuned_run(run, progress.outcomes) for run in contest.tuned.get(index, [])]
    scores = [run.score for run in runs if run.score is not None]
    errors = [run.error for run in runs if run.error is not None]
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return Candidate(
        settings=contest.points[index],
        seed=FIRST_TUNING_SEED,
        folder=f"{contest.task}/{contest.method}/candidate-{index}-seed-{FIRST_TUNING_SEED}",
        score=fmean(scores) if scores and not errors else None,
        error=errors[0] if errors else None,
        seconds=sum(seconds) if seconds else None,
        runs=runs,
    )


def _tuned_run(run: PlannedRun, outcomes: Mapping[Path, RunOutcome]) -> TunedRun:
    folder = f"{run.task}/{run.method}/{run.folder.name}"
    outcome = outcomes.get(run.folder)
    if outcome is None:
        return TunedRun(seed=run.seed, folder=folder)
    return TunedRun(
        seed=run.seed,
        folder=folder,
        score=outcome.score,
        error=outcome.error,
        seconds=outcome.seconds,
    )


def _runs(
    contest: Contest, planner: Planner, outcomes: Mapping[Path, RunOutcome]
) -> Iterator[ComparedRun]:
    for seed in contest.runs or planner.settings.seeds:
        run = contest.runs.get(seed)
        outcome = None if run is None else outcomes.get(run.folder)
        yield ComparedRun(
            task=contest.task,
            method=contest.method,
            seed=seed,
            folder=f"{contest.task}/{contest.method}/seed-{seed}",
            error=contest.problem if outcome is None else outcome.error,
        )


# ---- gains


def _gains(planner: Planner, progress: Progress) -> Iterator[MethodGain]:
    """Over the reference: of the primary outcome first, then of each task where there are
    several.
    """
    settings = planner.settings
    names = [name for name in settings.methods if name != settings.reference]
    names += [control.name for control in progress.controls]
    for tasks in [settings.tasks, *([(task,) for task in settings.tasks][: _several(planner)])]:
        for name in names:
            yield _gain(planner, progress, name, tasks)


def _several(planner: Planner) -> int:
    """The number of tasks, if there are several."""
    count = len(planner.settings.tasks)
    return count if count > 1 else 0


def _gain(planner: Planner, progress: Progress, name: str, tasks: tuple[str, ...]) -> MethodGain:
    settings = planner.settings
    mine, theirs = (
        {task: progress.outcomes_of(method)[task] for task in tasks}
        for method in (name, settings.reference)
    )
    is_primary = tasks == settings.tasks
    looks = progress.looks.get(name) if is_primary else None
    look = evidence.look(mine, theirs)
    if looks is None and look is not None:
        looks = Looks([look], look.seeds)
    interval = None if looks is None else looks.interval(settings.alpha)
    seeds = evidence.pairs(mine, theirs)
    return MethodGain(
        method=name,
        task=None if len(tasks) > 1 else tasks[0],
        seeds=len(seeds),
        mean=_mean(looks.looks[-1] if looks else None, mine, theirs),
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        sampling_error=evidence.sampling(mine, theirs),
        time=evidence.relative_time(mine, theirs),
        verdict=progress.verdicts.get(name) if is_primary else None,
        flaw=progress.flaw(name) if is_primary else None,
    )


def _mean(look: Look | None, mine: evidence.ByTask, theirs: evidence.ByTask) -> float | None:
    """The gain; of a single pair too, which has no look."""
    seeds, tasks = evidence.pairs(mine, theirs), list(theirs)
    if look is not None or not seeds:
        return None if look is None else look.mean
    return fmean(evidence.means(mine, tasks, seeds)) - fmean(evidence.means(theirs, tasks, seeds))


def _conclusion(planner: Planner, progress: Progress, gains: list[MethodGain]) -> str:
    settings = planner.settings
    margin = evidence.margin(progress.outcomes_of(settings.reference))
    chosen = {
        method: {
            name: value
            for name, value in progress.contests[settings.tasks[0], method].point.items()
            if name not in settings.grid.common
        }
        for method in settings.methods
        if len(settings.tasks) == 1
    }
    primary = [gain for gain in gains if gain.verdict is not None]
    return conclusion(
        settings.reference,
        primary,
        progress.looks,
        chosen,
        margin,
        settings.alpha,
        tuned=settings.candidates > 1,
        decimals=scale_of(planner.data[settings.tasks[0]].main_metrics).decimals,
    )


# ---- the same comparison


def check_same(old: CompareRecord, new: CompareRecord, folder: Path) -> None:
    """Refuse to continue another comparison. Tasks, methods and seeds may be added."""
    changed = "; ".join(f"{name} was {was}, is {now}" for name, was, now in _differences(old, new))
    if changed:
        raise SettingsError(
            f"{folder} holds another comparison: {changed}. Continue it with the same data and "
            "settings, or choose another --output"
        )


def _differences(old: CompareRecord, new: CompareRecord) -> Iterator[tuple[str, Any, Any]]:
    """What differs in the tasks and methods that both have: name, old value, new value."""
    yield from _unequal("search ", old.search, new.search)
    common = {name: old.grid[name] for name in old.grid if name in new.grid}
    yield from _unequal("grid of ", common, {name: new.grid[name] for name in common})
    before = {task.name: task for task in old.tasks}
    methods = set(old.settings["methods"]) & set(new.settings["methods"])
    for task in new.tasks:
        if task.name in before:
            was, now = decisive(before[task.name].settings), decisive(task.settings)
            chosen, given = was.pop("options"), now.pop("options")
            yield from _unequal(f"{task.name}: ", was, now)
            for method in sorted(methods):
                yield from _unequal(
                    f"{task.name}: {method} ", chosen.get(method, {}), given.get(method, {})
                )
            if before[task.name].fingerprint != task.fingerprint:
                prints = (before[task.name].fingerprint[:12], task.fingerprint[:12])
                yield (f"data of {task.name}", *prints)


def _unequal(
    prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**old, **new}:
        missing = name not in old or name not in new
        if missing or _comparable(name, old[name]) != _comparable(name, new[name]):
            yield prefix + name, old.get(name), new.get(name)


def _comparable(name: str, value: Any) -> Any:
    """A value as it reads after saving and loading; a record keeps the last part of a model's
    folder.
    """
    if isinstance(value, Mapping):
        return {key: _comparable(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(name, item) for item in value]
    return value.rpartition("/")[2] if name == "model" and isinstance(value, str) else value
