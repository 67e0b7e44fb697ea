"""Scores of predictions, as plain functions of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def classification_scores(logits: Array, labels: Array) -> dict[str, float]:
    """Accuracy.

    Example:
        >>> classification_scores(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 0]))
        {'accuracy': 0.5}
    """
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def regression_scores(outputs: Array, labels: Array) -> dict[str, float]:
    """Pearson correlation (0 where one side is constant) and root mean squared error.

    Example:
        >>> regression_scores(np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 4.0]))["pearson"] > 0.98
        True
    """
    values = outputs.reshape(labels.shape).astype(np.float64)
    spread = values.std() * labels.std()
    covariance = ((values - values.mean()) * (labels - labels.mean())).mean()
    return {
        "pearson": float(covariance / spread) if spread > 0 else 0.0,
        "rmse": float(np.sqrt(((values - labels) ** 2).mean())),
    }
