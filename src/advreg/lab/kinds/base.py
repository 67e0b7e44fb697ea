"""A kind of task: what a contributor writes to add one.

A kind has a folder in ``advreg.lab.kinds`` and settings whose ``kind`` is the folder's name. In the
folder are

``description.py``
    a :class:`~advreg.lab.kinds.description.Description`, which imports no torch: **describe**.
    Which records are of this kind, by which metrics they are judged, how a table and a model card
    show them, and how to score a resample of the evaluated samples.
``workload.py``
    a subclass of :class:`Workload` named ``WORKLOAD``: **load** the data that settings name, and
    **build** a run on them.
``job.py`` (or any other name)
    a subclass of :class:`~advreg.lab.kinds.training.Job`, which ``build`` returns: its trainer, and
    **score**, which evaluates and saves the trained model.

``registry.py`` lists the descriptions. Everything else is shared: plans, resumption, records,
tables, reports, comparisons and studies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from advreg.lab.kinds.arguments import training_arguments, update_count
from advreg.lab.kinds.training import Job, Notice, OnStep
from advreg.lab.runs.run import Plan, run
from advreg.methods.base import validate
from advreg.records.run import RunRecord


class Data(Protocol):
    """The samples of a task, as the loaders of a kind return them."""

    @property
    def name(self) -> str:
        """The name of the data set."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices about the data for the user."""

    def fingerprint(self) -> str:
        """A hash of all samples."""

    def held_out(self, share: float, seed: int, rows: int | None = None) -> Self:
        """A task within the training data, to tune on without a look at the evaluation sets.

        ``share`` of the training samples, or this many ``rows``, become the new evaluation set.
        The result depends on ``seed`` alone.
        """

    def swapped(self) -> Self:
        """A task that was held out, with the samples to train and to evaluate on exchanged."""


@dataclass(frozen=True)
class Workload(ABC):
    """The data of a task, and the code that makes runs on them.

    Args:
        data: the samples, a :class:`Data`; kinds say which.
        keep: a folder in which to cache prepared data for later runs; none: no cache.
    """

    data: Data
    keep: Path | None = None

    # ---- what a kind defines

    names_data: ClassVar[tuple[str, ...]]
    """The settings that decide which data are loaded."""

    @classmethod
    @abstractmethod
    def load(cls, settings: Any, keep: Path | None = None) -> Self:
        """The data that the settings name."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Samples of each set; ``train`` is one of them."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The data in a few words, such as ``40 training and 4 dev samples, 2 classes``."""

    @property
    @abstractmethod
    def main_metrics(self) -> tuple[str, ...]:
        """The metrics whose mean is a run's one number."""

    @property
    @abstractmethod
    def scored_on(self) -> str:
        """The set that the main metrics are taken on."""

    @abstractmethod
    def build(self, plan: Plan, notice: Notice) -> Job:
        """The run of a plan: model, encoded samples, method and settings.

        Writes no files, so that a failed build leaves none behind. ``notice`` receives notices for
        the user, such as the number of truncated texts.
        """

    def trained_on(self, settings: Any, notice: Notice) -> int:
        """The number of training samples with these settings; first prepares the training data, for
        example by learning subwords.
        """
        return self.sizes["train"]

    def for_rehearsal(self) -> Self:
        """A subset of the data that is enough to build a run."""
        return self

    # ---- what kinds share

    @property
    def title(self) -> str:
        """Name of the data."""
        return self.data.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices about the data for the user."""
        return self.data.notes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all samples."""
        return self.data.fingerprint()

    def held_out(
        self, share: float, seed: int, rows: int | None = None, swapped: bool = False
    ) -> Self:
        """A task within the training data, to tune on without a look at the evaluation sets.

        Args:
            share: of the training samples, to become the new evaluation set.
            seed: decides which.
            rows: how many, instead of a share.
            swapped: evaluate on the others, and train on these.
        """
        part = self.data.held_out(share, seed, rows)
        return replace(self, data=part.swapped() if swapped else part, keep=None)

    @property
    def untunable(self) -> frozenset[str]:
        """Settings that have no effect on these data, or no meaning."""
        return frozenset()

    def plans(
        self,
        settings: Any,
        folder: Path,
        notice: Notice = lambda _: None,
        spare: Path | None = None,
    ) -> list[Plan]:
        """Every seed with every method. Seeds are in the outer loop, so that changes of the
        machine's load affect all methods alike.

        A method that does not support these data or this machine is refused before any run starts.
        """
        settings.require(self.trained_on(settings, notice))
        return [
            Plan(settings, self, method, seed, folder / f"{method}-seed{seed}", spare)
            for seed in settings.seeds
            for method in settings.methods
        ]

    def rehearse(self, settings: Any, method: str, folder: Path, notice: Notice) -> int:
        """Build a run up to its first step, which finds errors early; writes nothing.

        Returns the number of steps of the run.
        """
        samples = self.trained_on(settings, notice)
        validate(settings.method(method), samples)
        plan = Plan(settings, self.for_rehearsal(), method, 0, folder)
        job = self.for_rehearsal().build(plan, lambda _: None)  # a few samples prove nothing
        arguments = training_arguments(folder, job.precision, job.fields)
        return update_count(arguments, job.batch_count(arguments, samples))

    def run(
        self, settings: Any, method: str, seed: int, folder: Path, on_step: OnStep, notice: Notice
    ) -> RunRecord:
        """Execute a run, or resume it from its last checkpoint."""
        plan = Plan(settings, self, method, seed, folder, keeps_model=False)
        return run(plan, on_step, notice, resume=True)
