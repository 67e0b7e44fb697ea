from __future__ import annotations

import doctest
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.recipes import metrics
from advreg.recipes.metrics import classification_scores, regression_scores

numbers = st.floats(-1e3, 1e3, width=32)
pairs_of_numbers = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=20)


def naive_pearson(left: list[float], right: list[float]) -> float | None:
    """Pearson's r term by term; None where a side hardly varies, and r is not determined to working precision."""
    one, other = statistics.fmean(left), statistics.fmean(right)
    across = math.fsum((a - one) * (b - other) for a, b in zip(left, right, strict=True))
    spread = math.fsum((a - one) ** 2 for a in left) * math.fsum((b - other) ** 2 for b in right)
    scale = max(map(abs, left)) * max(map(abs, right))
    return across / math.sqrt(spread) if spread > 1e-6 * scale**2 and spread > 1e-12 else None


@given(st.lists(st.tuples(st.lists(numbers, min_size=3, max_size=3), st.integers(0, 2)), min_size=1, max_size=20))
def test_accuracy_is_the_share_of_rows_whose_first_largest_logit_is_the_label(
    rows: list[tuple[list[float], int]],
) -> None:
    right = sum(logits.index(max(logits)) == label for logits, label in rows)
    found = classification_scores(np.array([logits for logits, _ in rows]), np.array([label for _, label in rows]))
    assert found == {"accuracy": pytest.approx(right / len(rows))}


@given(pairs_of_numbers)
def test_regression_scores_agree_with_a_sum_term_by_term(pairs: list[tuple[float, float]]) -> None:
    outputs, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = regression_scores(np.array(outputs, dtype=np.float32)[:, None], np.array(labels, dtype=np.float32))
    error = math.fsum((a - b) ** 2 for a, b in pairs) / len(pairs)
    assert found["rmse"] == pytest.approx(math.sqrt(error), rel=1e-4, abs=1e-4)
    expected = naive_pearson(outputs, labels)
    if expected is not None:
        assert found["pearson"] == pytest.approx(expected, abs=1e-3)


@given(pairs_of_numbers, st.floats(0.5, 2), st.floats(-5, 5))
def test_pearson_ignores_the_unit_and_origin_of_the_outputs(
    pairs: list[tuple[float, float]], unit: float, origin: float
) -> None:
    outputs, labels = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    if naive_pearson(outputs.tolist(), labels.tolist()) is not None:
        moved = regression_scores(unit * outputs + origin, labels)["pearson"]
        assert moved == pytest.approx(regression_scores(outputs, labels)["pearson"], abs=1e-3)


@pytest.mark.parametrize(("outputs", "labels"), [([2.0, 2.0], [1.0, 3.0]), ([1.0, 3.0], [2.0, 2.0]), ([1.0], [1.0])])
def test_pearson_is_zero_where_a_side_is_constant(outputs: list[float], labels: list[float]) -> None:
    assert regression_scores(np.array(outputs)[:, None], np.array(labels))["pearson"] == 0


def test_outputs_of_shape_n_by_1_are_not_broadcast_against_the_labels() -> None:
    labels = np.array([1.0, 2.0, 4.0])
    assert regression_scores(labels[:, None], labels) == {"pearson": pytest.approx(1.0), "rmse": 0.0}


def test_the_examples_hold() -> None:
    assert doctest.testmod(metrics, extraglobs={"np": np}).failed == 0
