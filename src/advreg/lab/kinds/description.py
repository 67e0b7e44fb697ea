"""What reports, tables and model cards need to know of a kind of task; none of it needs torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from advreg.lab.kinds.items import Items
from advreg.records.compare import in_percent
from advreg.records.run import RunRecord, TaskInfo

Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class Baseline:
    """An answer that needs no model.

    Args:
        name: says which.
        score: of the first column, out of 100.
    """

    name: str
    score: float


@dataclass(frozen=True)
class ScoreTable:
    """How ``advreg train`` shows the scores of finished runs: out of 100, as everywhere.

    Args:
        title: names the task, the set and the score.
        caption: below the table.
        columns: by heading, the metrics whose mean a column shows.
        decimals: of the scores.
        narrow: use short headings, because there are several columns of scores.
        baseline: what a run must exceed to have learnt anything.
    """

    title: str
    caption: str
    columns: Mapping[str, Sequence[str]]
    decimals: int
    narrow: bool = False
    baseline: Baseline | None = None

    def scores(self, record: RunRecord) -> list[float]:
        """The scores of a run, one a column; NaN where a metric is missing or not finite."""
        metrics = {name: in_percent(name, value) for name, value in record.outcome.metrics.items()}
        return [mean_of(metrics, names) for names in self.columns.values()]


class Description(ABC):
    """The torch-free half of a kind of task; :mod:`advreg.lab.kinds.base` has the other half."""

    name: ClassVar[str]
    """The name of the kind's folder in ``advreg.lab.kinds``, and the ``kind`` of its settings."""
    settings: ClassVar[str]
    """The module whose ``SETTINGS`` is the class of its runs' settings; imports no torch."""
    pipeline: ClassVar[str]
    """The pipeline tag of its models on the Hugging Face hub."""
    usage: ClassVar[str]
    """Python code that loads and uses a trained model, for the model card."""
    tasks: ClassVar[tuple[str, ...]]
    """What ``--task`` may be."""
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    """The metrics of which less is better; they are shown on their own scale."""
    architectures: ClassVar[tuple[str, ...]] = ()
    """What the names of its models' classes in ``config.json`` end with; empty: ``advreg predict``
    does not know them."""
    one_line: ClassVar[str] = ""
    """Python code that predicts with the model in the folder ``{model}``, in one line; empty:
    there is none.
    """
    streams: ClassVar[int] = 1
    """How many sequences of a sample are perturbed: two with an encoder and a decoder."""

    @abstractmethod
    def recognises(self, task: TaskInfo) -> bool:
        """Whether a record with this task is a run of this kind."""

    @abstractmethod
    def main_metrics(self, task: str, metrics: Metrics) -> tuple[str, ...]:
        """The metrics whose mean is a run's one number; none if the run is not of this kind."""

    @abstractmethod
    def scored_on(self, task: TaskInfo) -> str:
        """The name of the set on which the main metrics are taken."""

    @abstractmethod
    def table(self, record: RunRecord) -> ScoreTable:
        """How to show runs like this one."""

    @abstractmethod
    def rescore(
        self, items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
    ) -> dict[str, float]:
        """The metrics of a resample of a run's evaluated samples.

        Args:
            items: what the run left for each sample.
            metrics: names as in the record, such as ``accuracy`` or ``mm_accuracy``.
            rows: by set, the samples to score, with repetitions; a set that is not named is scored
                whole.
        """


def mean_of(metrics: Metrics, names: Sequence[str]) -> float:
    """The mean of the named metrics; NaN where one is missing or not finite."""
    values = [metrics.get(name) for name in names]
    return fmean(float("nan") if value is None else value for value in values)
