"""What a record says of its run: the score it is chosen by, and the one it is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from contests import LANGUAGE

from advreg.lab.kinds.classification.tasks import TASKS, main_score
from advreg.records.run import RunRecord

_VALID = "valid_"
_TRANSLATION = ("valid_bleu", ("bleu_2016", "bleu_2017"))


def validation_score(record: RunRecord) -> float:
    """What candidates are ranked by; −∞ for a run that diverged."""
    if record.outcome.status != "finished":
        return -math.inf
    metrics = record.outcome.metrics
    if record.task.name in LANGUAGE.tasks:
        return -100 * _number(metrics["valid_nll"])
    if _TRANSLATION[0] in metrics:
        return _number(metrics[_TRANSLATION[0]])
    return _text_score(
        record, {name[len(_VALID) :]: v for name, v in metrics.items() if name.startswith(_VALID)}
    )


def primary_score(record: RunRecord) -> float:
    """What a contest reports: a task's main score in per cent, or the mean BLEU of its test sets.

    For a language model, minus the loss per answer token, in hundredths of a nat: a gain of 1 is a
    loss lower by 0.01.
    """
    metrics = record.outcome.metrics
    if record.task.name in LANGUAGE.tasks:
        return -100 * _number(metrics["nll"])
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


_SIGNIFICANT = 0.01


def can_solve(records: Iterable[RunRecord]) -> bool:
    """Whether exact match says anything: one of Standard's tuning runs solves more problems than
    chance does.
    """
    return any(record.task.details.get("above_chance") is True for record in records)


def above_chance(right: int, count: int, chance: float) -> bool:
    """Whether this count of right answers is unlikely by chance alone (one-sided binomial test, p <
    0.01).
    """
    if chance <= 0 or right == 0:
        return right > 0
    ways = [
        math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
        for n in range(count + 1)
    ]
    p = sum(
        math.exp(ways[n] + n * math.log(chance) + (count - n) * math.log1p(-chance))
        for n in range(right, count + 1)
    )
    return p < _SIGNIFICANT


def scores(records: Iterable[RunRecord]) -> dict[str, float]:
    """The validation score of each run by its key; a run that was made twice counts with its first
    record.
    """
    found: dict[str, float] = {}
    for record in records:
        found.setdefault(record.name, validation_score(record))
    return found
