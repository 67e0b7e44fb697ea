"""Tasks of natural language understanding: GLUE's, SNLI, ANLI and MR, from a folder of files or
from the hub.

A folder holds `<task>/<split>.jsonl.gz`, or `nlu/<task>/<split>.jsonl.gz`: a JSON object a line
with `text_a`, for pairs `text_b`, and `label`, the number of the class in the order of
`TaskSpec.labels` or, for STS-B, a score. Without a folder (`--data`, or the variable ADVREG_DATA)
the same tasks are loaded by `datasets` from the Hugging Face hub.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.core.suggest import suggest
from advreg.lab.tasks.hub import HubSplit, load_split, require_columns
from advreg.lab.tasks.textdata import DATA_VARIABLE, DataError, Example, TextData, make_text_data

_UNLABELLED = -1  # what the hub gives samples without a label


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
    """A task with splits of its own, on the hub one of GLUE unless told; its first split but
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
    """All rounds together, after training on all the NLI sets there are; `accuracy` is that of all
    dev sets in one.
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
    """The scores a run is judged by: those of a named task, else BLEU, accuracy or Pearson's
    correlation.

    Example:
        >>> main_metrics("mrpc", {"accuracy": 0.84, "f1": 0.89})
        ('accuracy', 'f1')
        >>> main_metrics("reviews", {"loss": 1.0, "bleu": 30.5})
        ('bleu',)
    """
    spec = TASKS.get(task)
    if spec is not None and all(name in metrics for name in spec.main_metrics):
        return spec.main_metrics
    return next(((name,) for name in ("bleu", "accuracy", "pearson") if name in metrics), ())


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


# ---- loading


def load_task(name: str, folder: Path | None = None) -> TextData:
    """A task's samples: from `folder` or the one ADVREG_DATA names, and where neither is given from
    the hub.
    """
    spec = find_task(name)
    reader = _Reader(_data_folder(folder))
    parts = _training_parts(spec, reader)
    main, *further = spec.evaluations
    named = {key: reader.all_of(wanted) for key, wanted in spec.evaluations.items()}
    data = make_text_data(
        name,
        reader.all_of(parts),
        named[main],
        spec.labels,
        evaluations={key: named[key] for key in further},
        train_source=f"{name}/train",
        dev_source=f"{name}/{main}",
        blank_texts=True,  # QQP has a few, and the official sets are used whole
    )
    return replace(
        data, metrics=spec.metrics, notes=tuple(reader.notes), details=_details(spec, parts, reader)
    )


def _details(spec: TaskSpec, parts: Sequence[str], reader: _Reader) -> dict[str, Any]:
    """Which sets were used, and how many samples of how many each has."""
    return {
        "main_set": next(iter(spec.evaluations)),
        "training_sets": {part.split("/")[0]: reader.count([part]) for part in parts},
        "evaluation_sets": {key: reader.count(wanted) for key, wanted in spec.evaluations.items()},
    }


def _data_folder(folder: Path | None) -> Path | None:
    """The folder of the tasks' folders: the one given or its `nlu`, or None for the hub."""
    named = os.environ.get(DATA_VARIABLE) or None
    if folder is None and named is None:
        return None
    given = Path(named or "") if folder is None else folder
    if not given.is_dir():
        told = "data" if folder is not None else DATA_VARIABLE
        raise DataError(
            f"{told} must be a folder with TASK/SPLIT.jsonl.gz or nlu/TASK/SPLIT.jsonl.gz, got "
            f"'{given}', "
            f"{'a file' if given.exists() else 'which does not exist'}"
        )
    return given / "nlu" if (given / "nlu").is_dir() else given


def _training_parts(spec: TaskSpec, reader: _Reader) -> list[str]:
    """The training splits to use; what is missing of those that may be is noted."""
    if not spec.take_what_there_is:
        return list(spec.train)
    there = [part for part in spec.train if reader.has(part)]
    missing = [part for part in spec.train if part not in there]
    if not there:
        raise DataError(
            f"{spec.name} must have one of {', '.join(spec.train)} to train on, got none in "
            f"{reader.folder}"
        )
    if missing:
        reader.notes.append(
            f"{spec.name}: trained without {', '.join(missing)}, which {reader.folder} does not "
            "hold"
        )
    return there


@dataclass
class _Reader:
    """Reads TASK/SPLIT once each, from a folder or the hub; `notes` says what was left out."""

    folder: Path | None
    notes: list[str] = field(default_factory=list)
    parts: dict[str, list[Example]] = field(default_factory=dict)

    def has(self, part: str) -> bool:
        return self.folder is None or self._path(self.folder, part).is_file()

    def read(self, part: str) -> list[Example]:
        if part not in self.parts:
            spec = find_task(part.split("/")[0])
            rows = (
                _hub_rows(spec, part)
                if self.folder is None
                else _file_rows(spec, self._path(self.folder, part))
            )
            self.parts[part] = self._labelled(part, list(rows))
            if len(self.parts[part]) != (official := _official(part)):
                self.notes.append(
                    f"{part}: {len(self.parts[part]):,} samples; the official set has {official:,}"
                )
        return self.parts[part]

    def all_of(self, parts: Sequence[str]) -> list[Example]:
        return [example for part in parts for example in self.read(part)]

    def count(self, parts: Sequence[str]) -> dict[str, int]:
        return {"samples": len(self.all_of(parts)), "official": sum(map(_official, parts))}

    def _labelled(self, part: str, rows: Sequence[Example]) -> list[Example]:
        found = [row for row in rows if row.label != _UNLABELLED]
        if rows and not found:
            raise DataError(
                f"{part}: must have labels, but all {len(rows)} are -1: a hidden test set; use "
                "another split"
            )
        if len(found) < len(rows):
            self.notes.append(
                f"{part}: {len(rows) - len(found):,} samples without a label (-1) are left out"
            )
        return found

    @staticmethod
    def _path(folder: Path, part: str) -> Path:
        return folder / f"{part}.jsonl.gz"


def _official(part: str) -> int:
    """Labelled samples of the official TASK/SPLIT."""
    task, split = part.split("/")
    return TASKS[task].sizes[split]


def _file_rows(spec: TaskSpec, path: Path) -> Iterator[Example]:
    if not path.is_file():
        there = (
            ", ".join(sorted(entry.name for entry in path.parent.glob("*.jsonl.gz")))
            or "none of its splits"
        )
        raise DataError(
            f"{path}: must be a file, got nothing (its folder holds {there}); put the split there, "
            "or leave --data and "
            f"{DATA_VARIABLE} out to load '{spec.hub.path}' from the Hugging Face hub"
        )
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _parsed(spec, line, f"{path}, line {number}")
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: must be gzipped UTF-8 text, got: {error}; fetch the file again"
        ) from error


def _parsed(spec: TaskSpec, line: str, place: str) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: must be a JSON object, got {line.strip()[:40]!r} ({error}); correct it"
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: must be a JSON object, got {line.strip()[:40]!r}; correct it")
    wanted = ("text_a", "text_b") if spec.pair else ("text_a",)
    for name in wanted:
        if not isinstance(row.get(name), str):
            raise DataError(
                f"{place}: {name} must be a text, got {row.get(name)!r}; {spec.name} has "
                f"{_kind(spec)}"
            )
    if not spec.pair and row.get("text_b") is not None:
        raise DataError(
            f"{place}: text_b must not be given, for {spec.name} has {_kind(spec)}; is it the "
            "right file?"
        )
    return Example(
        row["text_a"], row["text_b"] if spec.pair else None, _label(spec, row.get("label"), place)
    )


def _kind(spec: TaskSpec) -> str:
    return "pairs of texts" if spec.pair else "single texts"


def _label(spec: TaskSpec, value: object, place: str) -> int | float:
    """A class number or a score; -1 stands for none."""
    if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
        if spec.labels is None:
            return float(value)
        if value == int(value) and _UNLABELLED <= value < len(spec.labels):
            return int(value)
    wanted = (
        "a number"
        if spec.labels is None
        else f"a class number: {', '.join(_numbered(spec.labels))}"
    )
    raise DataError(f"{place}: label must be {wanted}, got {value!r}; correct it or drop the line")


def _numbered(labels: Sequence[str]) -> list[str]:
    return [f"{number} {name}" for number, name in enumerate(labels)]


def _hub_rows(spec: TaskSpec, part: str) -> Iterator[Example]:
    where = HubSplit(spec.hub.path, spec.hub.config, spec.hub.splits[part.split("/")[1]])
    dataset = load_split(spec.name, where)
    require_columns(dataset, (*spec.hub.columns, "label"), where, part)
    number = _hub_numbers(spec, dataset.features["label"], part)
    columns = [dataset[name][:] for name in (*spec.hub.columns, "label")]
    for row, (*texts, label) in enumerate(zip(*columns, strict=True)):
        known = _UNLABELLED if label is None or label == _UNLABELLED else number.get(label, label)
        if isinstance(known, float):
            known = round(known, 6)  # the hub holds float32: 3.8 comes as 3.799999952
        place = f"'{spec.hub.path}' {part}, row {row}"
        yield Example(texts[0], texts[1] if spec.pair else None, _label(spec, known, place))


def _hub_numbers(spec: TaskSpec, feature: Any, part: str) -> dict[int, int]:
    """Our number of each of the hub's classes, told by their names."""
    names = getattr(feature, "names", None)
    if spec.labels is None or names is None:
        return {}
    if set(names) != set(spec.labels):
        raise DataError(
            f"'{spec.hub.path}': the classes of {part} must be {', '.join(spec.labels)}, got "
            f"{', '.join(names)}; "
            "the hub's data set has changed, give files with --data"
        )
    return {theirs: spec.labels.index(name) for theirs, name in enumerate(names)}
