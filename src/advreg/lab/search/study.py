"""One method, one thing varied at a time: the parameter study of ARCH's paper, on any task.

Each point of each study is trained with every seed, and so are the baselines. Variants that several
studies share, such as the default settings, are trained once. All runs are jobs of one runner, and
each leaves a record, so that the same command continues a study that was stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from advreg.hf.view.injection import InjectionError
from advreg.lab.runs.bases import shown
from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.workloads import load_workload
from advreg.lab.search.jobs import Environment, TrainRun
from advreg.lab.search.pool import Job, JobResult, Remaining, Runner, Watcher
from advreg.lab.search.study_settings import StudySettings, Variant
from advreg.methods.base import validate
from advreg.records.compare import ComparedTask, Status, recorded, score_of, seconds_of
from advreg.records.environment import now
from advreg.records.run import RunRecord
from advreg.records.study import (
    STUDY_FILE,
    Panel,
    StudiedPoint,
    StudiedRun,
    StudiedVariant,
    StudyRecord,
    load,
)

Kind = tuple[Any, ...]

# with the method, these decide whether a run can be built, and how many steps it takes
_OF_A_KIND = (
    "site",
    "encoder_dropout",
    "neighbour_embeddings",
    "epochs",
    "batch_size",
    "update_tokens",
)
_REMEDY = "take it out of the grid (advreg study --write-grid FILE, edit, --grid FILE)"


class Study:
    """A study in a folder.

    Making one loads the data, checks every planned run and reads the results of an earlier session;
    nothing is written before :meth:`run`.

    Args:
        settings: what to study.
        folder: of the runs.
        notice: takes what the user should know of data and points.
    """

    def __init__(
        self, settings: StudySettings, folder: Path, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.settings, self.folder = settings, folder
        self._environment = Environment()
        self._variants = settings.variants()
        self._data = load_workload(settings.base)
        self._notes = [*self._data.notes, *settings.notes()]
        for text in self._notes:
            notice(text)
        self._steps: dict[Kind, int] = {}
        self._rehearse(notice)
        self._begun = load(folder).started if (folder / STUDY_FILE).is_file() else now()
        self._runs = {
            (variant.name, seed): StudiedRun(seed=seed, folder=f"{variant.name}/seed-{seed}")
            for seed in settings.seeds
            for variant in self._variants.values()
        }
        self._places: dict[Path, tuple[str, int]] = {}
        self._jobs = list(self._unsettled())

    def _rehearse(self, notice: Callable[[str], None]) -> None:
        """Build a run of each kind up to its first step, and count its steps."""
        for variant in self._variants.values():
            with _refused(variant, ValueError):
                validate(variant.settings.method(variant.method), self._data.sizes["train"])
        for variant in self._variants.values():
            if (kind := _kind(variant)) not in self._steps:
                with _refused(variant, InjectionError):
                    self._steps[kind] = self._data.rehearse(
                        variant.settings, variant.method, self.folder, notice
                    )

    # ---- jobs

    @property
    def left(self) -> Remaining:
        """The runs that are left."""
        return Remaining(
            len(self._places), sum(job.cost for job in self._jobs if job.folder in self._places)
        )

    def plan(self) -> dict[str, tuple[int, int]]:
        """The runs that are left, by variant: their number, and the steps of each."""
        left = Counter(name for name, _ in self._places.values())
        return {
            name: (left[name], self._steps[_kind(variant)])
            for name, variant in self._variants.items()
            if name in left
        }

    def _unsettled(self) -> Iterator[Job]:
        """The runs without a record; seeds in the outer loop, so that a study that is stopped has
        all of its points.
        """
        for name, seed in self._runs:
            run = self._train_run(self._variants[name], seed)
            record = run.settled(self._data.fingerprint)
            if record is None:
                self._places[run.folder] = (name, seed)
                yield Job(
                    f"{name}/seed-{seed}", run.folder, run, run.cost(self._data.sizes["train"])
                )
            else:
                self._take(name, seed, record)

    def _train_run(self, variant: Variant, seed: int) -> TrainRun:
        return TrainRun(
            settings=variant.settings,
            method=variant.method,
            seed=seed,
            folder=self.folder / self._runs[variant.name, seed].folder,
            keep="all" if self.settings.keep_models else "nothing",
        )

    # ---- results

    def run(self, runner: Runner, watcher: Watcher) -> StudyRecord:
        """Make the runs that are left; the record in the folder is kept up to date."""
        return recorded(
            self.record, self.folder, lambda: runner.run(self._jobs, watcher, self._after)
        )

    def _after(self, ended: JobResult) -> list[Job]:
        """Note a result; no further run depends on it."""
        name, seed = self._places.pop(ended.job.folder)
        if ended.error is None:
            self._take(name, seed, ended.value)
        else:
            self._runs[name, seed] = replace(self._runs[name, seed], error=ended.error)
        self.record("running").save(self.folder)
        return []

    def _take(self, name: str, seed: int, record: RunRecord) -> None:
        """Note the score of a run."""
        self._environment.saw(record)
        score, error = None, record.outcome.error
        if record.outcome.status == "finished":
            score = score_of(record.outcome.metrics, self._data.main_metrics)
            error = None if score is not None else "its score is not a finite number"
        self._runs[name, seed] = replace(
            self._runs[name, seed], score=score, error=error, seconds=seconds_of(record)
        )

    def record(self, status: Status) -> StudyRecord:
        """The record of everything known so far."""
        settings = self.settings
        return StudyRecord(
            status=status,
            method=settings.method,
            seeds=list(settings.seeds),
            task=self._task(),
            panels=[
                Panel(
                    name=study.name,
                    title=study.title,
                    points=[
                        StudiedPoint(
                            label=point.label,
                            variant=settings.variant(settings.method, point.changes).name,
                        )
                        for point in study.points
                    ],
                )
                for study in settings.studies
            ],
            baselines=[settings.variant(method, {}).name for method in settings.baselines],
            variants=[
                StudiedVariant(
                    name=variant.name,
                    method=variant.method,
                    changes=dict(variant.changes),
                    runs=[self._runs[variant.name, seed] for seed in settings.seeds],
                )
                for variant in self._variants.values()
            ],
            notes=self._notes,
            environment=self._environment.as_dict(),
            started=self._begun,
            finished=now(),
        )

    def _task(self) -> ComparedTask:
        settings, data = self.settings, self._data
        return ComparedTask(
            name=settings.base.task,
            title=data.title,
            main_metrics=list(data.main_metrics),
            scored_on=data.scored_on,
            fingerprint=data.fingerprint,
            sizes=data.sizes,
            settings=shown(settings.base, settings.base.methods),
        )


@contextmanager
def _refused(variant: Variant, why: type[Exception]) -> Iterator[None]:
    """Errors of this type name the variant and a remedy."""
    try:
        yield
    except why as error:
        raise SettingsError(f"{variant.name} cannot be run: {error}; else {_REMEDY}") from error


def _kind(variant: Variant) -> Kind:
    return variant.method, *(getattr(variant.settings, name, None) for name in _OF_A_KIND)
