"""Tasks of natural language understanding: GLUE's, SNLI, ANLI and MR, from a folder of files or
from the hub.

A folder holds `<task>/<split>.jsonl.gz`, or `nlu/<task>/<split>.jsonl.gz`: a JSON object a line
with `text_a`, for pairs `text_b`, and `label`, the number of the class in the order of
`TaskSpec.labels` or, for STS-B, a score. Without a folder (`--data`, or the variable ADVREG_DATA)
the same tasks are loaded by `datasets` from the Hugging Face hub.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.lab.kinds.classification.tasks import TASKS, TaskSpec, find_task
from advreg.lab.kinds.classification.textdata import Example, TextData, make_text_data
from advreg.lab.kinds.sources import (
    DATA_VARIABLE,
    DataError,
    HubSplit,
    data_folder,
    json_object,
    load_split,
    read_text,
    require_columns,
)

_UNLABELLED = -1  # what the hub gives samples without a label


# ---- loading


def load_task(name: str, folder: Path | None = None) -> TextData:
    """A task's samples: from `folder` or the one ADVREG_DATA names, and where neither is given from
    the hub.
    """
    spec = find_task(name)
    reader = _Reader(_tasks_folder(folder))
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


def _tasks_folder(folder: Path | None) -> Path | None:
    """The folder of the tasks' folders: the one given or its `nlu`, or None for the hub."""
    given = data_folder(folder)
    if given is None:
        return None
    if not given.is_dir():
        raise DataError(
            f"{'data' if folder is not None else DATA_VARIABLE} must be a folder with "
            f"TASK/SPLIT.jsonl.gz or nlu/TASK/SPLIT.jsonl.gz, got '{given}', "
            f"{'a file' if given.exists() else 'which does not exist'}"
        )
    return given / "nlu" if (given / "nlu").is_dir() else given


def _training_parts(spec: TaskSpec, reader: _Reader) -> list[str]:
    """The training splits to use; a split that may be missing and is, is noted."""
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
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield _parsed(spec, line, f"{path}, line {number}")


def _parsed(spec: TaskSpec, line: str, place: str) -> Example:
    row = json_object(line, place)
    for name in ("text_a", "text_b")[: 1 + spec.pair]:
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
    return Example(row["text_a"], row.get("text_b"), _label(spec, row.get("label"), place))


def _kind(spec: TaskSpec) -> str:
    return "pairs of texts" if spec.pair else "single texts"


def _label(spec: TaskSpec, value: object, place: str) -> int | float:
    """A class number or a score; -1 means no label."""
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
