"""Scores of predictions, as plain functions of arrays; GLUE's metrics follow GLUE's definitions.

Where a score is not defined (a correlation with predictions that are all the same, F1 without a
positive sample anywhere) it is 0: a model that says the same of everything has learnt nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from advreg.core.checks import suggest
from advreg.lab.kinds.items import Items

Array = np.ndarray[Any, Any]
Metric = Callable[[Array, Array], float]


def accuracy(predictions: Array, labels: Array) -> float:
    """Share of the predicted classes that are right."""
    return float((predictions == labels).mean())


def f1(predictions: Array, labels: Array) -> float:
    """2 · precision · recall / (precision + recall) of class 1, the positive one.

    Example:
        >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])).__round__(3)
        0.667
    """
    hits = float(((predictions == 1) & (labels == 1)).sum())
    marked = float((predictions == 1).sum() + (labels == 1).sum())
    return 2 * hits / marked if marked > 0 else 0.0


def macro_f1(predictions: Array, labels: Array) -> float:
    """The mean of F1 over the classes that are predicted or right somewhere.

    Example:
        >>> macro_f1(np.array([0, 0, 0, 0]), np.array([1, 0, 0, 0])).__round__(3)
        0.429
    """
    classes = np.union1d(predictions, labels)
    return float(np.mean([f1(predictions == each, labels == each) for each in classes]))


def matthews(predictions: Array, labels: Array) -> float:
    """Matthews' correlation: Pearson's between prediction and label, for any number of classes
    (Gorodkin 2004).
    """
    classes = np.union1d(predictions, labels)
    guessed = (predictions[:, None] == classes).astype(np.float64)  # (N, classes)
    true = (labels[:, None] == classes).astype(np.float64)
    guessed, true = guessed - guessed.mean(0), true - true.mean(0)
    spread = float((guessed**2).sum()) * float((true**2).sum())
    return float((guessed * true).sum() / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(predictions: Array, labels: Array) -> float:
    """Pearson's correlation."""
    if (
        np.ptp(predictions) == 0 or np.ptp(labels) == 0
    ):  # not by the deviation, which rounding may leave above 0
        return 0.0
    values, targets = _centred(predictions), _centred(labels)
    spread = np.sqrt((values**2).sum()) * np.sqrt((targets**2).sum())
    return float(np.clip((values * targets).sum() / spread, -1, 1)) if spread > 0 else 0.0


def spearman(predictions: Array, labels: Array) -> float:
    """Spearman's rank correlation; values that are equal share the mean of their ranks.

    Example:
        >>> spearman(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3])).__round__(6)
        1.0
    """
    return pearson(_ranks(predictions), _ranks(labels))


def rmse(predictions: Array, labels: Array) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(((predictions.astype(np.float64) - labels) ** 2).mean()))


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "rmse": rmse,
}


def scores(predictions: Array, labels: Array, metrics: Sequence[str]) -> dict[str, float]:
    """The named scores of predicted classes, or of predicted values for a regression.

    Example:
        >>> scores(np.array([1, 0]), np.array([1, 1]), ["accuracy", "matthews"])
        {'accuracy': 0.5, 'matthews': 0.0}
    """
    if predictions.shape != labels.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(
            f"predictions and labels must be of one length, at least 1, got {predictions.shape} "
            f"and {labels.shape}"
        )
    for name in metrics:
        if name not in METRICS:
            raise ValueError(
                f"unknown metric '{name}'{suggest(name, METRICS)}; there are {', '.join(METRICS)}"
            )
    return {name: METRICS[name](predictions, labels) for name in metrics}


def predicted(outputs: Array, labels: Array, regression: bool | None = None) -> Array:
    """What a model predicts: the class with the largest logit, or for a regression its output.

    Args:
        outputs: (N, classes), or (N, 1) for a regression.
        labels: (N,).
        regression: by default, whether the labels are floating-point numbers.
    """
    regression = labels.dtype.kind == "f" if regression is None else regression
    return outputs.reshape(labels.shape) if regression else outputs.argmax(-1)


def scorer(metrics: Sequence[str], regression: bool) -> Callable[[Array, Array], dict[str, float]]:
    """The named scores as a function of what a model puts out, logits or values, and the labels.

    Example:
        >>> scorer(["f1"], regression=False)(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 1]))
        {'f1': 1.0}
    """

    def score(outputs: Array, labels: Array) -> dict[str, float]:
        return scores(predicted(outputs, labels, regression), labels, metrics)

    return score


def usual_metrics(regression: bool) -> tuple[str, ...]:
    """The scores of data that name none; the first is the main one."""
    return ("pearson", "rmse") if regression else ("accuracy",)


def rescored(
    items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """The named metrics of a resample; see :meth:`Description.rescore`."""
    found: dict[str, float] = {}
    for name, columns in items.sets.items():
        prefix = items.prefix(name)
        wanted = [metric for metric in METRICS if f"{prefix}{metric}" in metrics]
        chosen = rows.get(name, slice(None))
        predictions, labels = (np.asarray(columns[n])[chosen] for n in ("predictions", "labels"))
        for metric, value in scores(predictions, labels, wanted).items():
            found[f"{prefix}{metric}"] = value
    return found


def _centred(values: Array) -> Array:
    """Deviations from the mean, in units of the largest, so that no square overflows or
    vanishes.
    """
    deviations: Array = values.astype(np.float64) - values.astype(np.float64).mean()
    deviations /= max(float(np.abs(deviations).max()), float(np.finfo(np.float64).tiny))
    return deviations


def _ranks(values: Array) -> Array:
    """Ranks from 1 on; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
