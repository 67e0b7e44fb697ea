"""Calibration of predicted probabilities: likelihood, calibration error, and the temperature that
corrects both.

Logits are (N, classes), labels (N,); sums are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
_LOWEST, _HIGHEST = 0.01, 100.0  # temperatures
_HALVINGS = 50


def negative_log_likelihood(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """− mean log softmax(z / T)_y.

    Example:
        >>> uniform = negative_log_likelihood(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
        >>> math.isclose(uniform, math.log(4), rel_tol=1e-6)
        True
    """
    return float(_per_row(logits, labels, temperature).mean())


def expected_calibration_error(
    logits: Tensor, labels: Tensor, temperature: float = 1.0, bins: int = BINS
) -> float:
    """Σ_b |B_b| / N · |accuracy(B_b) − confidence(B_b)| over bins of equal width (Guo et al. 2017,
    1706.04599).

    Confidence is the probability of the predicted class; a bin is closed at its upper
    end.
    """
    return float(_gaps(logits, labels, temperature, bins).abs().sum() / len(labels))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T with the highest likelihood of held-out labels, between 0.01 and 100.

    The negative log-likelihood is convex in β = 1/T, with the slope mean(Σ_v p_v z_v − z_y), whose
    root is found by halving an interval of log T.
    """
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (
            _slope(logits, labels, math.exp(middle)) > 0
        ):  # too sharp: a higher temperature is better
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def calibration(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """Likelihood and calibration error of a set, as predicted and with a temperature fitted
    elsewhere.
    """
    tally = Tally(temperature)
    tally.add(logits, labels)
    return tally.scores()


class Tally:
    """:func:`calibration` of a set that comes a part at a time, for logits that do not fit in
    memory together.

    Args:
        temperature: fitted elsewhere.
    """

    def __init__(self, temperature: float) -> None:
        self._temperatures = {"": 1.0, "scaled_": temperature}
        self._losses = dict.fromkeys(self._temperatures, 0.0)
        self._gaps = {name: torch.zeros(BINS, dtype=torch.float64) for name in self._temperatures}
        self._rows = 0

    def add(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Add these rows; returns the negative log-likelihood of each, as predicted."""
        losses = {
            name: _per_row(logits, labels, value) for name, value in self._temperatures.items()
        }
        for name, value in self._temperatures.items():
            self._losses[name] += float(losses[name].sum())
            self._gaps[name] += _gaps(logits, labels, value, BINS).cpu()
        self._rows += len(labels)
        return losses[""]

    def scores(self) -> dict[str, float]:
        """``nll`` and ``ece`` of all rows so far, and with the temperature ``scaled_nll`` and
        ``scaled_ece``.
        """
        found = {}
        for name in self._temperatures:
            found[f"{name}nll"] = self._losses[name] / self._rows
            found[f"{name}ece"] = float(self._gaps[name].abs().sum() / self._rows)
        return found


_ROWS_AT_ONCE = 4096  # of a vocabulary of 50,000 words in float64: 1.6 GB


def _parts(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time."""
    for first in range(0, len(labels), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        yield logits[rows], labels[rows]


def _per_row(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    return torch.cat(
        [
            F.cross_entropy(rows.double() / temperature, right, reduction="none")
            for rows, right in _parts(logits, labels)
        ]
    )


def _gaps(logits: Tensor, labels: Tensor, temperature: float, bins: int) -> Tensor:
    """Σ (correct − confidence) of the rows in each bin of confidence."""
    confidence, correct = _confidence(logits, labels, temperature)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    return torch.zeros(bins, dtype=torch.float64, device=logits.device).index_add_(
        0, place, correct - confidence
    )


def _confidence(logits: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The probability of the predicted class, and whether it is right."""
    parts = [
        (rows.double() / temperature).softmax(-1).max(-1) for rows, _ in _parts(logits, labels)
    ]
    predicted = torch.cat([part.indices for part in parts])
    return torch.cat([part.values for part in parts]), (predicted == labels).double()


def _slope(logits: Tensor, labels: Tensor, temperature: float) -> float:
    """The slope of the negative log-likelihood by 1/T."""
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for rows, right in _parts(logits, labels):
        wide = rows.double()
        expected = ((wide / temperature).softmax(-1) * wide).sum(-1)
        total += (expected - wide.gather(1, right[:, None])[:, 0]).sum()
    return float(total)
