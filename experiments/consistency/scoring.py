"""What a record says of its run: the score it is chosen by, and the one it is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from advreg.lab.tasks.understanding import TASKS, main_score
from advreg.records.run import RunRecord

_VALID = "valid_"
_TRANSLATION = ("valid_bleu", ("bleu_2016", "bleu_2017"))


def validation_score(record: RunRecord) -> float:
    """What candidates are ranked by; −∞ for a run that diverged."""
    if record.outcome.status != "finished":
        return -math.inf
    metrics = record.outcome.metrics
    if _TRANSLATION[0] in metrics:
        return _number(metrics[_TRANSLATION[0]])
    return _text_score(
        record, {name[len(_VALID) :]: v for name, v in metrics.items() if name.startswith(_VALID)}
    )


def primary_score(record: RunRecord) -> float:
    """What a contest reports: a task's main score in per cent, or the mean BLEU of its test
    sets.
    """
    metrics = record.outcome.metrics
    found = [name for name in _TRANSLATION[1] if name in metrics]
    if found:
        return fmean(_number(metrics[name]) for name in found)
    return _text_score(
        record, {name: v for name, v in metrics.items() if not name.startswith(_VALID)}
    )


def _text_score(record: RunRecord, metrics: Mapping[str, float | None]) -> float:
    if record.task.name in TASKS:
        return main_score(record.task.name, metrics)
    return 100 * _number(metrics["accuracy"])


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def scores(records: Iterable[RunRecord]) -> dict[str, float]:
    """The validation score of each run by its key; a run that was made twice counts with its first
    record.
    """
    found: dict[str, float] = {}
    for record in records:
        found.setdefault(record.name, validation_score(record))
    return found
