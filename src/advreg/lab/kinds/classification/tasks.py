"""Named tasks of natural language understanding: GLUE's, SNLI, ANLI and MR, and their scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from advreg.core.checks import suggest
from advreg.lab.kinds.sources import DataError


@dataclass(frozen=True)
class Hub:
    """Where a task is on the Hugging Face hub: dataset, configuration, text columns, and its names
    of the splits.
    """

    path: str
    config: str | None
    columns: tuple[str, ...]
    splits: Mapping[str, str]


@dataclass(frozen=True)
class TaskSpec:
    """One task.

    Args:
        name: of the task, and of its folder.
        labels: names of the classes in the order of their numbers; None for a regression.
        metrics: scores taken on every evaluation set.
        main_metrics: the scores of a run whose mean is the task's one number.
        train: what to train on, each as TASK/SPLIT.
        evaluations: by name, what to evaluate on; the first is `TextData.dev`, whose scores bear no
            prefix.
        hub: where its own splits are on the hub.
        sizes: how many labelled samples its own splits officially have.
        take_what_there_is: a training split that is missing is named and left out.
    """

    name: str
    labels: tuple[str, ...] | None
    pair: bool
    metrics: tuple[str, ...]
    main_metrics: tuple[str, ...]
    train: tuple[str, ...]
    evaluations: Mapping[str, tuple[str, ...]]
    hub: Hub
    sizes: Mapping[str, int]
    take_what_there_is: bool = False

    @property
    def is_regression(self) -> bool:
        return self.labels is None


def _task(
    name: str,
    labels: tuple[str, ...] | None,
    columns: tuple[str, ...],
    sizes: tuple[int, ...],
    main: tuple[str, ...] = ("accuracy",),
    more: tuple[str, ...] = (),
    hub: tuple[str, str | None] | None = None,
    splits: Mapping[str, str] | None = None,
) -> TaskSpec:
    """A task with its splits, by default one of GLUE on the hub; its first split but
    `train` is `dev`.
    """
    path, config = hub or ("nyu-mll/glue", name)
    splits = splits or {"train": "train", "dev": "validation"}
    return TaskSpec(
        name=name,
        labels=labels,
        pair=len(columns) == 2,
        metrics=main + more,
        main_metrics=main,
        train=(f"{name}/train",),
        evaluations={split: (f"{name}/{split}",) for split in splits if split != "train"},
        hub=Hub(path, config, columns, splits),
        sizes=dict(zip(splits, sizes, strict=True)),
    )


_NLI = ("entailment", "neutral", "contradiction")
_ENTAILED = ("entailment", "not_entailment")
_SENTENCES, _QUESTIONS, _PREMISE = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
)
_THREE_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_ROTTEN_TOMATOES = "cornell-movie-review-data/rotten_tomatoes"


def _mnli() -> TaskSpec:
    """Judged on both dev sets, whose mean is its one number; `accuracy` is the matched one's."""
    splits = {"train": "train", "dev": "validation_matched", "dev_mm": "validation_mismatched"}
    spec = _task("mnli", _NLI, _PREMISE, (392_702, 9_815, 9_832), splits=splits)
    evaluations = {"m": ("mnli/dev",), "mm": ("mnli/dev_mm",)}
    return replace(spec, evaluations=evaluations, main_metrics=("accuracy", "mm_accuracy"))


def _anli_round(number: int, *sizes: int) -> TaskSpec:
    splits = {split: f"{split}_r{number}" for split in ("train", "dev", "test")}
    return _task(
        f"anli_r{number}", _NLI, _PREMISE, sizes, hub=("facebook/anli", None), splits=splits
    )


def _anli() -> TaskSpec:
    """All rounds together, after training on all the NLI sets there are; `accuracy` is taken on
    all dev sets together.
    """
    rounds = ("anli_r1", "anli_r2", "anli_r3")
    evaluations = {"all_dev": tuple(f"{name}/dev" for name in rounds)}
    for split in ("dev", "test"):
        evaluations |= {
            f"{name.removeprefix('anli_')}_{split}": (f"{name}/{split}",) for name in rounds
        }
    evaluations["all_test"] = tuple(f"{name}/test" for name in rounds)
    return TaskSpec(
        name="anli",
        labels=_NLI,
        pair=True,
        metrics=("accuracy",),
        main_metrics=("accuracy",),
        train=tuple(f"{name}/train" for name in ("mnli", "snli", *rounds)),
        evaluations=evaluations,
        hub=Hub("facebook/anli", None, _PREMISE, {}),
        sizes={},
        take_what_there_is=True,
    )


TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _task(
            "cola",
            ("unacceptable", "acceptable"),
            ("sentence",),
            (8_551, 1_043),
            ("matthews",),
            ("accuracy",),
        ),
        _task("sst2", ("negative", "positive"), ("sentence",), (67_349, 872)),
        _task(
            "mrpc", ("not_equivalent", "equivalent"), _SENTENCES, (3_668, 408), ("accuracy", "f1")
        ),
        _task("rte", _ENTAILED, _SENTENCES, (2_490, 277)),
        _task("stsb", None, _SENTENCES, (5_749, 1_500), ("pearson", "spearman"), ("rmse",)),
        _task("qnli", _ENTAILED, ("question", "sentence"), (104_743, 5_463)),
        _task(
            "qqp", ("not_duplicate", "duplicate"), _QUESTIONS, (363_846, 40_430), ("accuracy", "f1")
        ),
        _mnli(),
        _task(
            "snli",
            _NLI,
            _PREMISE,
            (549_367, 9_842, 9_824),
            hub=("stanfordnlp/snli", None),
            splits=_THREE_SPLITS,
        ),
        _anli_round(1, 16_946, 1_000, 1_000),
        _anli_round(2, 45_460, 1_000, 1_000),
        _anli_round(3, 100_459, 1_200, 1_200),
        _anli(),
        _task("mr", ("neg", "pos"), ("text",), (8_530, 1_066), hub=(_ROTTEN_TOMATOES, None)),
    )
}


def find_task(name: str) -> TaskSpec:
    """A task by name."""
    if name not in TASKS:
        raise DataError(
            f"unknown task '{name}'{suggest(name, TASKS)}; there are {', '.join(TASKS)}"
        )
    return TASKS[name]


# ---- scores


def main_metrics(task: str, metrics: Mapping[str, float | None]) -> tuple[str, ...]:
    """The scores by which a run on texts is judged: a named task's own, else accuracy or Pearson's
    correlation; none if `metrics` has neither.

    Example:
        >>> main_metrics("mrpc", {"accuracy": 0.84, "f1": 0.89})
        ('accuracy', 'f1')
    """
    spec = TASKS.get(task)
    if spec is not None and all(name in metrics for name in spec.main_metrics):
        return spec.main_metrics
    return next(((name,) for name in ("accuracy", "pearson") if name in metrics), ())


def main_score(task: str, metrics: Mapping[str, float | None]) -> float:
    """A task's one number, in percent: the mean of its `main_metrics` (GLUE's rule for tasks with
    two).

    A score of a further set (MNLI's `mm_accuracy`) is left out where `metrics` lacks it, as in
    held-out data; one that is not a finite number makes the result NaN.

    Example:
        >>> main_score("mrpc", {"accuracy": 0.84, "f1": 0.89})
        86.5
        >>> main_score("rte", {"accuracy": 0.5, "loss": 1.0})
        50.0
    """
    spec = find_task(task)
    for name in spec.main_metrics:
        if name in spec.metrics and name not in metrics:
            raise DataError(
                f"{task} is judged by {', '.join(spec.main_metrics)}, got "
                f"{', '.join(metrics) or 'nothing'}"
            )
    values = [metrics[name] for name in spec.main_metrics if name in metrics]
    return 100 * statistics.fmean(math.nan if value is None else value for value in values)


def average_score(per_task: Mapping[str, float]) -> float:
    """The mean of the tasks' one numbers, each task counting once, as in the paper's table of GLUE.

    That table's average is over eight tasks (WNLI is left out); a task with two scores (MRPC, QQP,
    STS-B) enters with their mean, and so does MNLI with its two dev sets. Fewer tasks give the mean
    of those there are, which is not comparable with the paper's.

    Example:
        >>> average_score({"rte": 60.0, "cola": 30.0})
        45.0
    """
    if not per_task:
        raise DataError("an average needs the score of at least one task, got none")
    for name in per_task:
        find_task(name)
    return statistics.fmean(per_task.values())
