from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from advreg.lab.kinds.classification.metrics import (
    METRICS,
    scorer,
    scores,
    usual_metrics,
)

classification_scores = scorer(usual_metrics(regression=False), regression=False)
regression_scores = scorer(usual_metrics(regression=True), regression=True)

numbers = st.floats(-1e3, 1e3, width=32)
pairs_of_numbers = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=20)


def naive_pearson(left: list[float], right: list[float]) -> float | None:
    """Pearson's r term by term; None where a side hardly varies, and r is not determined to working
    precision.
    """
    one, other = statistics.fmean(left), statistics.fmean(right)
    across = math.fsum((a - one) * (b - other) for a, b in zip(left, right, strict=True))
    spread = math.fsum((a - one) ** 2 for a in left) * math.fsum((b - other) ** 2 for b in right)
    scale = max(map(abs, left)) * max(map(abs, right))
    return across / math.sqrt(spread) if spread > 1e-6 * scale**2 and spread > 1e-12 else None


@given(
    st.lists(
        st.tuples(st.lists(numbers, min_size=3, max_size=3), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    )
)
def test_accuracy_is_the_share_of_rows_whose_first_largest_logit_is_the_label(
    rows: list[tuple[list[float], int]],
) -> None:
    right = sum(logits.index(max(logits)) == label for logits, label in rows)
    found = classification_scores(
        np.array([logits for logits, _ in rows]), np.array([label for _, label in rows])
    )
    assert found == {"accuracy": pytest.approx(right / len(rows))}


@given(pairs_of_numbers)
def test_regression_scores_agree_with_a_sum_term_by_term(pairs: list[tuple[float, float]]) -> None:
    outputs, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = regression_scores(
        np.array(outputs, dtype=np.float32)[:, None], np.array(labels, dtype=np.float32)
    )
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


@pytest.mark.parametrize(
    ("outputs", "labels"), [([2.0, 2.0], [1.0, 3.0]), ([1.0, 3.0], [2.0, 2.0]), ([1.0], [1.0])]
)
def test_pearson_is_zero_where_a_side_is_constant(
    outputs: list[float], labels: list[float]
) -> None:
    assert regression_scores(np.array(outputs)[:, None], np.array(labels))["pearson"] == 0


def test_outputs_of_shape_n_by_1_are_not_broadcast_against_the_labels() -> None:
    labels = np.array([1.0, 2.0, 4.0])
    assert regression_scores(labels[:, None], labels) == {
        "pearson": pytest.approx(1.0),
        "rmse": 0.0,
    }


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_scores_of_classes_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (np.array(side) for side in zip(*pairs, strict=True))
    found = scores(predictions, labels, ["accuracy", "f1", "matthews"])
    f1 = reference.f1_score(labels, predictions, labels=[1], average="micro", zero_division=0)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predictions))
    assert found["f1"] == pytest.approx(f1)
    assert found["matthews"] == pytest.approx(
        reference.matthews_corrcoef(labels, predictions), abs=1e-9
    )


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_f1_is_scikit_learn_s_of_the_positive_class(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (np.array(side) for side in zip(*pairs, strict=True))
    expected = reference.f1_score(labels, predictions, zero_division=0)
    assert scores(predictions, labels, ["f1"]) == {"f1": pytest.approx(expected)}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_macro_f1_is_scikit_learn_s(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (np.array(side) for side in zip(*pairs, strict=True))
    expected = reference.f1_score(labels, predictions, average="macro", zero_division=0.0)
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=30))
def test_correlations_of_values_with_ties_are_those_of_scipy(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (np.array(side) / 3 for side in zip(*pairs, strict=True))
    found = scores(predictions, labels, ["pearson", "spearman"])
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        assert found == {"pearson": 0.0, "spearman": 0.0}
    else:
        assert found["pearson"] == pytest.approx(
            stats.pearsonr(predictions, labels).statistic, abs=1e-9
        )
        assert found["spearman"] == pytest.approx(
            stats.spearmanr(predictions, labels).statistic, abs=1e-9
        )


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 2.6e30])
def test_predictions_that_are_all_the_same_correlate_with_nothing(constant: float) -> None:
    values = np.full(7, constant)  # the mean of these is not always exactly the constant
    labels = np.arange(7.0)
    assert scores(values, labels, ["pearson", "spearman"]) == {"pearson": 0.0, "spearman": 0.0}
    assert scores(labels, values, ["pearson", "spearman"]) == {"pearson": 0.0, "spearman": 0.0}
    assert scores(np.ones(7), labels % 2, ["matthews"]) == {"matthews": 0.0}


def test_f1_without_a_positive_sample_anywhere_is_zero() -> None:
    assert scores(np.zeros(3), np.zeros(3), ["f1"]) == {"f1": 0.0}


@given(pairs_of_numbers)
def test_correlations_survive_values_whose_squares_overflow(
    pairs: list[tuple[float, float]],
) -> None:
    outputs, labels = (np.array(side) for side in zip(*pairs, strict=True))
    if naive_pearson(outputs.tolist(), labels.tolist()) is not None:
        large = scores(outputs * 1e200, labels * 1e-200, ["pearson"])["pearson"]
        assert large == pytest.approx(scores(outputs, labels, ["pearson"])["pearson"], abs=1e-9)


def test_a_scorer_reads_classes_from_logits_and_values_as_they_are() -> None:
    logits, labels = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]), np.array([1, 0, 0])
    assert scorer(["accuracy", "f1"], regression=False)(logits, labels) == {
        "accuracy": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
    }
    values = np.array([[1.0], [2.0], [4.0]])
    assert scorer(["spearman"], regression=True)(values, values[:, 0]) == {
        "spearman": pytest.approx(1.0)
    }


def test_a_metric_that_does_not_exist_is_refused_and_the_likely_one_named() -> None:
    with pytest.raises(
        ValueError, match=r"unknown metric 'acuracy' \(did you mean 'accuracy'\?\); there are ac"
    ):
        scores(np.zeros(1), np.zeros(1), ["acuracy"])
    wanted = {"accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "rmse"}
    assert set(METRICS) == wanted


@pytest.mark.parametrize(("predictions", "labels"), [((2,), (3,)), ((2, 1), (2,)), ((0,), (0,))])
def test_predictions_and_labels_of_different_shapes_are_refused(
    predictions: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    with pytest.raises(
        ValueError, match="predictions and labels must be of one length, at least 1, got"
    ):
        scores(np.zeros(predictions), np.zeros(labels), ["accuracy"])
