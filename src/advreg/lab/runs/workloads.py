"""The data of a task, of understanding or of translation, as comparisons and studies need them: one
face for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from advreg.lab.kinds.arguments import training_arguments, update_count
from advreg.lab.kinds.fine_tuning import OnStep
from advreg.lab.runs import classify, translation
from advreg.lab.runs.bases import AnySettings
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.tasks.parallel import ParallelData
from advreg.lab.tasks.textdata import Example, TextData
from advreg.lab.tasks.understanding import TASKS
from advreg.methods.base import validate
from advreg.records.run import RunRecord

Notice = Callable[[str], None]

_TEXT_FIELDS = ("task", "data", "train", "dev", "text_column", "pair_column", "label_column")
_PREPARING = ("vocabulary", "joint", "subwords", "character_coverage", "longest", "max_ratio")
_PARALLEL_FIELDS = (
    *("task", "data", "source", "target", "tokenised"),
    *(f"{split}_{side}" for split in ("train", "valid", "test") for side in ("source", "target")),
)


class Workload(ABC):
    """A task's data; made by :func:`load_workload`."""

    data: TextData | ParallelData

    @property
    def title(self) -> str:
        """Name of the data."""
        return self.data.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should be told of them."""
        return self.data.notes

    @cached_property
    def fingerprint(self) -> str:
        """Of all samples."""
        return self.data.fingerprint()

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Samples of each set."""

    @property
    @abstractmethod
    def main_metrics(self) -> tuple[str, ...]:
        """The scores of a run whose mean is its one number."""

    @property
    @abstractmethod
    def scored_on(self) -> str:
        """The set that they are taken on."""

    @abstractmethod
    def held_out(self, share: float, seed: int) -> Workload:
        """A task within the training data, to tune on without a look at what a run is judged by in
        the end.
        """

    @abstractmethod
    def rehearse(self, settings: Any, method: str, folder: Path, notice: Notice) -> int:
        """Build a run up to its first step, so that what cannot work is refused; nothing is
        written.

        Returns how many steps it would take.
        """

    @abstractmethod
    def run(
        self, settings: Any, method: str, seed: int, folder: Path, on_step: OnStep, notice: Notice
    ) -> RunRecord:
        """Carry a run out, or go on with it from its last checkpoint."""


@dataclass(frozen=True)
class Texts(Workload):
    """Labelled texts."""

    data: TextData

    @property
    def sizes(self) -> dict[str, int]:
        return {"train": len(self.data.train), "dev": len(self.data.dev)}

    @property
    def main_metrics(self) -> tuple[str, ...]:
        if self.data.metrics:  # a known task
            return TASKS[self.data.name].main_metrics
        return ("pearson",) if self.data.is_regression else ("accuracy",)

    @property
    def scored_on(self) -> str:
        return "dev"

    def held_out(self, share: float, seed: int) -> Texts:
        return Texts(self.data.held_out(share, seed))

    def rehearse(self, settings: TrainSettings, method: str, folder: Path, notice: Notice) -> int:
        validate(settings.method(method), len(self.data.train))
        few = replace(
            self.data, train=_one_of_each_class(self.data), dev=self.data.dev[:1], evaluations={}
        )
        plan = classify.Plan(settings, few, method, 0, folder)
        job = classify.prepare(
            plan, settings.method(method), lambda _: None
        )  # what it says of a few samples is not so
        arguments = training_arguments(folder, settings.precision, job.fields)
        whole, rest = divmod(len(self.data.train), arguments.per_device_train_batch_size)
        return update_count(arguments, whole + (rest > 0 and not arguments.dataloader_drop_last))

    def run(
        self,
        settings: TrainSettings,
        method: str,
        seed: int,
        folder: Path,
        on_step: OnStep,
        notice: Notice,
    ) -> RunRecord:
        plan = classify.Plan(settings, self.data, method, seed, folder)
        return classify.run(plan, lambda _, *step: on_step(*step), notice, resume=True)


@dataclass(frozen=True)
class Translations(Workload):
    """Parallel text; subwords are learnt when a run is first made of it, and kept for the next."""

    data: ParallelData
    _prepared: dict[str, translation.Prepared] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(text) for name, text in self.data.splits.items()}

    @property
    def main_metrics(self) -> tuple[str, ...]:
        return ("tokenised_bleu",) if self.data.tokenised else ("bleu",)

    @property
    def scored_on(self) -> str:
        return next(iter(self.data.tests()))

    def held_out(self, share: float, seed: int) -> Translations:
        return Translations(self.data.held_out(share, seed))

    def rehearse(
        self, settings: TranslationSettings, method: str, folder: Path, notice: Notice
    ) -> int:
        prepared = self._prepare(settings, notice)
        validate(settings.method(method), len(prepared.train))
        job = translation.make_job(translation.Plan(settings, prepared, method, 0, folder))
        return update_count(
            training_arguments(folder, settings.precision, job.fields), len(job.batches())
        )

    def run(
        self,
        settings: TranslationSettings,
        method: str,
        seed: int,
        folder: Path,
        on_step: OnStep,
        notice: Notice,
    ) -> RunRecord:
        plan = translation.Plan(settings, self._prepare(settings, notice), method, seed, folder)
        return translation.run(plan, lambda _, *step: on_step(*step), notice, resume=True)

    def _prepare(self, settings: TranslationSettings, notice: Notice) -> translation.Prepared:
        key = _key(settings, _PREPARING)
        if key not in self._prepared:
            self._prepared.clear()
            self._prepared[key] = translation.prepare_data(settings, self.data, None, notice)
        return self._prepared[key]


def load_workload(settings: AnySettings) -> Workload:
    """The data that the settings name."""
    if isinstance(settings, TranslationSettings):
        return Translations(translation.load_parallel(settings))
    assert isinstance(settings, TrainSettings)
    return Texts(classify.load_data(settings))


def source_of(settings: AnySettings) -> str:
    """The same for settings that name the same data."""
    return _key(
        settings, _PARALLEL_FIELDS if isinstance(settings, TranslationSettings) else _TEXT_FIELDS
    )


def _key(settings: AnySettings, names: tuple[str, ...]) -> str:
    return repr([getattr(settings, name) for name in names])


def _one_of_each_class(data: TextData) -> tuple[Example, ...]:
    """A few training samples, enough to build a run on."""
    return (
        data.train[:2] if data.labels is None else tuple({e.label: e for e in data.train}.values())
    )
