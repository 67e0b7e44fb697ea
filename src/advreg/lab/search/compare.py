"""Tasks × methods × seeds on equal terms: every method is tuned with the same budget, on training
data alone.

For each task and method a number of candidates is drawn from a grid. Each is trained once on a part
of the training data and judged by the task's main score on the rest; what a run is reported on is
not looked at. The best is then trained with every seed on all of the training data and evaluated on
dev, a translator on the test set. All runs are jobs of one runner, so that they fill the machine,
and each leaves a record, so that nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advreg.lab.kinds.registry import lower_is_better
from advreg.lab.runs.plans import RECORD_FILE
from advreg.lab.runs.settings import SettingsError, decisive
from advreg.lab.runs.workloads import Workload, load_workload
from advreg.lab.search.compare_settings import SEARCH_SEED, CompareSettings
from advreg.lab.search.grids import Grid, Point
from advreg.lab.search.jobs import Environment, HeldOut, TrainRun
from advreg.lab.search.pool import Ended, Job, Left, Runner, Watcher
from advreg.records.compare import (
    COMPARE_FILE,
    Candidate,
    Choice,
    ComparedRun,
    ComparedTask,
    CompareRecord,
    Status,
    load,
    recorded,
    score_of,
    seconds_of,
    wall_seconds,
)
from advreg.records.environment import now
from advreg.records.run import RunRecord
from advreg.records.run import load as load_run

HELD_OUT_SHARE = 0.1
_FIRST_TUNING_SEED = 1000  # candidate i is trained with seed 1000 + i, whatever the method


@dataclass(frozen=True)
class _Loaded:
    """A task's data and what is held out of them to tune on."""

    whole: Workload
    tuning: Workload | None


@dataclass
class _Contest:
    """One method on one task: its candidates and the runs of the one that is chosen."""

    task: str
    method: str
    candidates: list[Candidate]
    runs: list[ComparedRun]
    lower_is_better: bool = False
    chosen: int | None = None
    opened: bool = False  # are its runs handed out?

    @property
    def settings(self) -> Point:
        return self.candidates[self.chosen].settings if self.chosen is not None else {}

    def choose(self) -> str | None:
        """Choose the first of those with the best score, once all are in; why that cannot be done,
        if so.
        """
        if self.chosen is not None or not self.candidates:
            return None
        scores = [candidate.score for candidate in self.candidates]
        pick = min if self.lower_is_better else max
        best = pick((score for score in scores if score is not None), default=None)
        if best is None:
            first = self.candidates[0].error
            return f"none of its {len(scores)} candidates could be trained; the first: {first}"
        self.chosen = scores.index(best)
        return None

    def take_over(self, old: Choice) -> None:
        """A choice that was made stands, even if a candidate that failed then might do better
        now.
        """
        if old.chosen is not None and len(old.candidates) == len(self.candidates):
            self.candidates, self.chosen = list(old.candidates), old.chosen


class Comparison:
    """A comparison in a folder: what is done already, what is left, and the record of it all.

    Making one loads the data, checks every run that is planned and reads what an earlier one left
    in the folder; nothing is written before :meth:`run`.

    Args:
        settings: what to compare.
        folder: of the runs.
        notice: told what a user should know of the data.
    """

    def __init__(
        self,
        settings: CompareSettings,
        folder: Path,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings, self.folder = settings, folder
        self._environment = Environment()
        self._data = {task: self._load(task) for task in settings.tasks}
        for text in self._data_notes():
            notice(text)
        pairs = [(task, method) for task in settings.tasks for method in settings.methods]
        self._contests = {pair: self._contest(*pair) for pair in pairs}
        self._begun = now()
        if (folder / COMPARE_FILE).is_file():
            self._go_on_with(load(folder))
        self._costs = {
            pair: self._likely_cost(contest) for pair, contest in self._contests.items()
        }  # of one run
        self._probe(notice)
        self._places: dict[
            Path, tuple[_Contest, int, bool]
        ] = {}  # of each job: its contest, its index, tuning or not
        self._pending: dict[Path, float] = {}  # what each job that is not over costs
        self._first = list(self._first_jobs())

    # ---- before the first run

    def _load(self, task: str) -> _Loaded:
        data = load_workload(self.settings.bases[task])
        return _Loaded(
            data, data.held_out(HELD_OUT_SHARE, SEARCH_SEED) if self.settings.budget > 1 else None
        )

    def _contest(self, task: str, method: str) -> _Contest:
        candidates = [
            Candidate(
                settings=point,
                seed=_FIRST_TUNING_SEED + index,
                folder=f"{task}/{method}/candidate-{index}",
            )
            for index, point in enumerate(self.settings.candidates(method))
        ]
        runs = [
            ComparedRun(task=task, method=method, seed=seed, folder=f"{task}/{method}/seed-{seed}")
            for seed in self.settings.seeds
        ]
        lower = lower_is_better(self._data[task].whole.main_metrics)
        return _Contest(task, method, candidates, runs, lower)

    def _go_on_with(self, old: CompareRecord) -> None:
        """What is in the folder must be of the same comparison; tasks, methods and seeds may be
        added.
        """
        changed = [
            f"{name} was {was}, is {now}"
            for name, was, now in _differences(old, self.record("running"))
        ]
        if changed:
            raise SettingsError(
                f"{self.folder} holds another comparison: {'; '.join(changed)}. Go on with the "
                "same data and settings, "
                "or choose another --output"
            )
        self._begun = old.started
        for choice in old.choices:
            if (choice.task, choice.method) in self._contests:
                self._contests[choice.task, choice.method].take_over(choice)

    def _probe(self, notice: Callable[[str], None]) -> None:
        """Build every kind of run up to its first step: each task, method and dropout once."""
        seen: set[Any] = set()
        for contest in self._contests.values():
            for point in [candidate.settings for candidate in contest.candidates] or [{}]:
                run = self.settings.settings_for(contest.task, contest.method, point)
                new = {
                    contest.task,
                    contest.method,
                    ("dropout", getattr(run, "encoder_dropout", None)),
                } - seen
                if new:
                    self._data[contest.task].whole.rehearse(
                        run, contest.method, self.folder, notice
                    )
                seen |= new

    # ---- jobs

    @property
    def left(self) -> Left:
        """Runs that are still to be made, as far as one can know."""
        parts = self.plan().values()
        return Left(sum(part.jobs for part in parts), sum(part.cost for part in parts))

    def plan(self) -> dict[str, Left]:
        """What is left, by task and method: candidates, and runs like the one that is likely to be
        chosen.
        """
        costs = {
            pair: [] if contest.opened else [self._costs[pair]] * len(contest.runs)
            for pair, contest in self._contests.items()
        }
        for folder, cost in self._pending.items():
            contest, _, _ = self._places[folder]
            costs[contest.task, contest.method].append(cost)
        return {"/".join(pair): Left(len(each), sum(each)) for pair, each in costs.items() if each}

    def _first_jobs(self) -> Iterator[Job]:
        """Candidates that are not settled, the methods taking turns; and the runs of what is chosen
        already.
        """
        for index in range(self.settings.budget):
            for contest in self._contests.values():
                if contest.chosen is None and index < len(contest.candidates):
                    yield from self._candidate_job(contest, index)
        for contest in self._contests.values():
            yield from self._open(contest)

    def _candidate_job(self, contest: _Contest, index: int) -> Iterator[Job]:
        """The job of a candidate, unless its record is there."""
        candidate, data = contest.candidates[index], self._data[contest.task]
        run = self._train_run(
            contest, candidate.settings, candidate.seed, self.folder / candidate.folder, tuning=True
        )
        assert data.tuning is not None
        record = run.settled(data.tuning.fingerprint)
        if record is None:
            yield self._job(contest, index, run)
        else:
            contest.candidates[index] = self._judged(contest.task, candidate, record)

    def _open(self, contest: _Contest) -> Iterator[Job]:
        """Once all candidates are in: choose, and go on to the runs with every seed."""
        if self._pending.keys() & {
            self.folder / candidate.folder for candidate in contest.candidates
        }:
            return
        contest.opened = True
        problem = contest.choose()
        data = self._data[contest.task]
        for index, entry in enumerate(contest.runs):
            if problem is not None:
                contest.runs[index] = replace(entry, error=problem)
                continue
            run = self._run(contest, contest.settings, entry)
            record = run.settled(data.whole.fingerprint)
            if record is None:
                yield self._job(contest, index, run)
            else:
                self._environment.saw(record)
                contest.runs[index] = replace(entry, error=record.outcome.error)

    def _run(self, contest: _Contest, point: Point, entry: ComparedRun) -> TrainRun:
        return self._train_run(contest, point, entry.seed, self.folder / entry.folder)

    def _train_run(
        self, contest: _Contest, point: Point, seed: int, folder: Path, tuning: bool = False
    ) -> TrainRun:
        return TrainRun(
            settings=self.settings.settings_for(contest.task, contest.method, point),
            method=contest.method,
            seed=seed,
            folder=folder,
            held_out=HeldOut(HELD_OUT_SHARE, SEARCH_SEED) if tuning else None,
            keep_model=self.settings.keep_models,
        )

    def _job(self, contest: _Contest, index: int, run: TrainRun) -> Job:
        self._places[run.folder] = (contest, index, run.held_out is not None)
        self._pending[run.folder] = self._cost(run)
        name = f"{contest.task}/{contest.method}/{run.folder.name}"
        return Job(name, run.folder, run, self._pending[run.folder])

    def _likely_cost(self, contest: _Contest) -> float:
        """What a run of a contest costs, or one like it while it is not decided."""
        likely = contest.candidates[contest.chosen or 0].settings if contest.candidates else {}
        return self._cost(self._run(contest, likely, contest.runs[0]))

    def _cost(self, run: TrainRun) -> float:
        data = self._data[run.settings.task]
        part = data.whole if run.held_out is None else data.tuning
        assert part is not None
        return run.cost(part.sizes["train"])

    # ---- results

    def run(self, runner: Runner, watcher: Watcher) -> CompareRecord:
        """Do what is left; the record is in the folder at every moment from here on."""
        return recorded(
            self.record, self.folder, lambda: runner.run(self._first, watcher, self._after)
        )

    def _after(self, ended: Ended) -> list[Job]:
        """Take a result in; returns the runs it makes possible."""
        contest, index, tuning = self._places[ended.job.folder]
        self._pending.pop(ended.job.folder, None)
        jobs: list[Job] = []
        if not tuning:
            if ended.value is not None:
                self._environment.saw(ended.value)
            contest.runs[index] = replace(contest.runs[index], error=ended.error)
        else:
            candidate, record = (
                contest.candidates[index],
                ended.value or _record_in(ended.job.folder),
            )
            judged = candidate if record is None else self._judged(contest.task, candidate, record)
            failed = replace(judged, score=None, error=ended.error)
            contest.candidates[index] = judged if ended.error is None else failed
            jobs = list(self._open(contest))
        self.record("running").save(self.folder)
        return jobs

    def _judged(self, task: str, candidate: Candidate, record: RunRecord) -> Candidate:
        """A candidate with what its record says."""
        self._environment.saw(record)
        outcome = record.outcome
        if outcome.status != "finished":
            return replace(candidate, error=outcome.error, seconds=wall_seconds(record))
        score = score_of(outcome.metrics, self._data[task].whole.main_metrics)
        error = None if score is not None else "its score is not a finite number"
        return replace(candidate, score=score, error=error, seconds=seconds_of(record))

    def record(self, status: Status) -> CompareRecord:
        """All that is known so far."""
        settings, contests = self.settings, self._contests.values()
        grid = settings.grid if settings.budget > 1 else Grid()
        return CompareRecord(
            status=status,
            settings={
                "methods": settings.methods,
                "seeds": settings.seeds,
                "model": settings.any_base.model,
            },
            grid={
                "common": {name: list(values) for name, values in grid.common.items()},
                **{
                    name: {key: list(values) for key, values in own.items()}
                    for name, own in grid.methods.items()
                },
            },
            search={
                "budget": settings.budget,
                "held_out": HELD_OUT_SHARE if settings.budget > 1 else None,
                "seed": SEARCH_SEED,
                "first_tuning_seed": _FIRST_TUNING_SEED,
                "judged_by": "main score on training data held out; ties go to the first",
            },
            reference=settings.reference,
            tasks=[self._compared(task) for task in settings.tasks],
            choices=[
                Choice(
                    task=contest.task,
                    method=contest.method,
                    grid_size=grid.size(contest.method),
                    candidates=list(contest.candidates),
                    chosen=contest.chosen,
                )
                for contest in contests
            ],
            runs=[run for contest in contests for run in contest.runs],
            notes=self._notes(),
            environment=self._environment.as_dict(),
            started=self._begun,
            finished=now(),
        )

    def _compared(self, task: str) -> ComparedTask:
        whole, tuning = self._data[task].whole, self._data[task].tuning
        return ComparedTask(
            name=task,
            title=whole.title,
            main_metrics=list(whole.main_metrics),
            scored_on=whole.scored_on,
            fingerprint=whole.fingerprint,
            sizes=whole.sizes,
            tuning_sizes={} if tuning is None else tuning.sizes,
            settings=self.settings.shown(task),
        )

    def _data_notes(self) -> list[str]:
        return list(
            dict.fromkeys(text for loaded in self._data.values() for text in loaded.whole.notes)
        )

    def _notes(self) -> list[str]:
        """What is not on equal terms, and what the data have to say."""
        notes = self._data_notes()
        counts = {method: len(self.settings.candidates(method)) for method in self.settings.methods}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{method} {count}" for method, count in counts.items())
            notes.append(
                "candidates differ, because a grid has fewer points than the budget of "
                f"{self.settings.budget}: {told}"
            )
        return notes


def _record_in(folder: Path) -> RunRecord | None:
    """The record of a run that failed; one whose process died has none."""
    path = folder / RECORD_FILE
    return load_run(path) if path.is_file() else None


def _differences(old: CompareRecord, new: CompareRecord) -> Iterator[tuple[str, Any, Any]]:
    """What differs in the tasks and methods that both have: name, old value, new value."""
    yield from _unequal("search ", old.search, new.search)
    yield from _unequal("grid of ", old.grid, new.grid)
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
                yield (
                    f"data of {task.name}",
                    before[task.name].fingerprint[:12],
                    task.fingerprint[:12],
                )


def _unequal(
    prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**old, **new}:
        if (
            name not in old
            or name not in new
            or _comparable(name, old[name]) != _comparable(name, new[name])
        ):
            # a method that is new, or not asked for this time, has a grid in one of them only
            if prefix == "grid of " and (name not in old or name not in new):
                continue
            yield prefix + name, old.get(name), new.get(name)


def _comparable(name: str, value: Any) -> Any:
    """As it reads when it was written and read again; of a model's folder the record keeps the last
    part.
    """
    if isinstance(value, Mapping):
        return {key: _comparable(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(name, item) for item in value]
    return value.rpartition("/")[2] if name == "model" and isinstance(value, str) else value
