"""Likelihood, calibration error and temperature against naive sums, and what must hold of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advreg.lab.kinds import calibration as module
from advreg.lab.kinds.calibration import (
    Tally,
    calibration,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)


def drawn(count: int, classes: int, sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from them, so that they are calibrated before they are sharpened."""
    torch.manual_seed(0)
    logits = torch.randn(count, classes) * 2
    labels = torch.multinomial(logits.softmax(-1), 1)[:, 0]
    return logits * sharpness, labels


def naive_nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(value / temperature) for value in row]
        total -= math.log(weights[label] / sum(weights))
    return total / len(labels)


def naive_ece(logits: Tensor, labels: Tensor, temperature: float, bins: int) -> float:
    filled: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(value / temperature) for value in row]
        best = max(range(len(row)), key=row.__getitem__)
        confidence = weights[best] / sum(weights)
        place = next(number for number in range(bins) if confidence <= (number + 1) / bins)
        filled.setdefault(place, []).append((confidence, best == label))
    gap = 0.0
    for found in filled.values():
        accuracy = sum(right for _, right in found) / len(found)
        gap += (
            len(found)
            / len(labels)
            * abs(accuracy - sum(confidence for confidence, _ in found) / len(found))
        )
    return gap


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_scores_are_those_of_naive_sums(temperature: float) -> None:
    logits, labels = drawn(400, 5)
    assert negative_log_likelihood(logits, labels, temperature) == pytest.approx(
        naive_nll(logits, labels, temperature)
    )
    found = expected_calibration_error(logits, labels, temperature, 15)
    assert found == pytest.approx(naive_ece(logits, labels, temperature, 15))


def test_rows_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = drawn(50, 4, 2.0)
    whole = calibration(logits, labels, fit_temperature(logits, labels))
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 7)
    assert calibration(logits, labels, fit_temperature(logits, labels)) == pytest.approx(whole)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_what_sharpened_the_logits(sharpness: float) -> None:
    logits, labels = drawn(20_000, 4, sharpness)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(sharpness, rel=0.05)
    best = negative_log_likelihood(logits, labels, found)
    for other in (0.9 * found, 1.1 * found):
        assert best <= negative_log_likelihood(logits, labels, other)
    assert expected_calibration_error(logits, labels, found) < 0.02


def test_labels_that_are_always_predicted_call_for_the_lowest_temperature() -> None:
    logits, _ = drawn(20, 3)
    assert fit_temperature(logits, logits.argmax(-1)) == pytest.approx(0.01, rel=1e-6)
    assert fit_temperature(logits, logits.argmin(-1)) == pytest.approx(100.0, rel=1e-6)


def test_a_certain_and_right_prediction_has_no_calibration_error() -> None:
    logits = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert expected_calibration_error(logits, torch.tensor([0, 1])) == pytest.approx(0.0)
    assert expected_calibration_error(logits, torch.tensor([1, 0])) == pytest.approx(1.0)


def test_a_tally_of_parts_is_that_of_the_whole_and_gives_the_loss_of_each_row() -> None:
    logits, labels = drawn(50, 4, 2.0)
    tally = Tally(2.0)
    losses = torch.cat(
        [
            tally.add(logits[rows], labels[rows])
            for rows in (slice(0, 7), slice(7, 30), slice(30, 50))
        ]
    )
    assert losses.tolist() == pytest.approx(
        [naive_nll(logits[[row]], labels[[row]], 1.0) for row in range(len(labels))]
    )
    assert tally.scores() == pytest.approx(
        {
            "nll": naive_nll(logits, labels, 1.0),
            "ece": naive_ece(logits, labels, 1.0, 15),
            "scaled_nll": naive_nll(logits, labels, 2.0),
            "scaled_ece": naive_ece(logits, labels, 2.0, 15),
        }
    )
