from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advreg.core import divergence as divergences
from advreg.core.divergence import (
    Divergence,
    Prediction,
    divergence,
    kl,
    squared_error,
    symmetric_kl,
    widen,
)
from padded import few

Measure = Callable[[Tensor, Tensor], Tensor]
# float32 loses about 1e-5 of a log-probability of −200, and a KL is a difference of those
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FAR_APART = [
    ([200.0, 0.0, 0.0], [0.0, 200.0, 0.0]),  # certain of two different classes
    ([200.0, 0.0, -150.0], [190.0, 0.0, 10.0]),  # certain of the same class
    ([0.0, 0.0, 0.0], [0.0, 200.0, -200.0]),  # undecided and certain
    ([1000.0, -1000.0, 0.0], [1000.0, -1000.0, 0.0]),  # certain and equal
]


@st.composite
def two_rows(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Two rows of logits up to 400 apart."""
    classes = draw(st.integers(2, 5))
    row = st.lists(st.floats(-200, 200, width=32), min_size=classes, max_size=classes)
    return draw(row), draw(row)


def log_probabilities(row: list[float]) -> list[float]:
    top = max(row)
    return [x - top - math.log(math.fsum(math.exp(y - top) for y in row)) for x in row]


def naive_kl(clean: list[float], perturbed: list[float]) -> float:
    """Σ_k p_k (log p_k − log q_k) in Python floats."""
    pairs = zip(log_probabilities(clean), log_probabilities(perturbed), strict=True)
    return math.fsum(math.exp(p) * (p - q) for p, q in pairs)


def naive_symmetric_kl(clean: list[float], perturbed: list[float]) -> float:
    return (naive_kl(clean, perturbed) + naive_kl(perturbed, clean)) / 2


def wide_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    """Σ p log(p/q) as a textbook writes it, for float64, where e^−400 is still a number."""
    p, q = clean.softmax(-1), perturbed.softmax(-1)
    return (p * (p.log() - q.log())).sum(-1)


def wide_symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    return (wide_kl(clean, perturbed) + wide_kl(perturbed, clean)) / 2


def gradients(measure: Measure, clean: Tensor, perturbed: Tensor) -> tuple[Tensor, ...]:
    leaves = clean.clone().requires_grad_(), perturbed.clone().requires_grad_()
    return torch.autograd.grad(measure(*leaves).sum(), leaves)


both = pytest.mark.parametrize(
    ("measure", "naive", "wide"),
    [(kl, naive_kl, wide_kl), (symmetric_kl, naive_symmetric_kl, wide_symmetric_kl)],
    ids=["kl", "symmetric_kl"],
)


@both
@few
@given(rows=two_rows())
def test_values_agree_with_the_sum_in_double_precision(
    rows: tuple[list[float], list[float]],
    measure: Measure,
    naive: Callable[..., float],
    wide: Measure,
) -> None:
    value = measure(torch.tensor(rows[0]), torch.tensor(rows[1])).item()
    assert value == pytest.approx(naive(*rows), rel=1e-4, abs=1e-4)


@both
@few
@given(rows=two_rows())
def test_gradients_agree_with_double_precision(
    rows: tuple[list[float], list[float]],
    measure: Measure,
    naive: Callable[..., float],
    wide: Measure,
) -> None:
    clean, perturbed = torch.tensor(rows[0]), torch.tensor(rows[1])
    expected = gradients(wide, clean.double(), perturbed.double())
    for ours, theirs in zip(gradients(measure, clean, perturbed), expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-3, atol=1e-3)


@both
@pytest.mark.parametrize(("clean", "perturbed"), FAR_APART)
def test_logits_far_apart_have_finite_values_and_finite_gradients(
    clean: list[float],
    perturbed: list[float],
    measure: Measure,
    naive: Callable[..., float],
    wide: Measure,
) -> None:
    rows = torch.tensor(clean), torch.tensor(perturbed)
    assert measure(*rows).item() == pytest.approx(naive(clean, perturbed), rel=1e-5, abs=1e-5)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(measure, *rows))


def test_the_divergence_of_certain_and_opposite_predictions_is_the_gap_between_their_logits() -> (
    None
):
    clean, perturbed = torch.tensor([200.0, 0.0]), torch.tensor([0.0, 200.0])
    assert kl(clean, perturbed).item() == pytest.approx(200)
    assert symmetric_kl(clean, perturbed).item() == pytest.approx(200)
    clean_gradient, perturbed_gradient = gradients(kl, clean, perturbed)
    torch.testing.assert_close(perturbed_gradient, torch.tensor([-1.0, 1.0]))  # q − p
    torch.testing.assert_close(clean_gradient, torch.zeros(2))


@pytest.mark.parametrize("prediction", ["classes", "labels", "value"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_anything_is_computed(
    dtype: torch.dtype, prediction: Prediction
) -> None:
    clean, perturbed = (torch.randn(4, 3).to(dtype) * 20 for _ in range(2))
    value = divergence(clean, perturbed, "kl", prediction)
    assert value.dtype == torch.float32
    torch.testing.assert_close(
        value, divergence(clean.float(), perturbed.float(), "kl", prediction), rtol=0, atol=0
    )


def test_float16_logits_far_apart_are_told_apart_from_their_float64_values_by_rounding_only() -> (
    None
):
    clean, perturbed = (
        torch.tensor([200.0, 0.0, 1.0]).half(),
        torch.tensor([1.0, 180.0, 0.0]).half(),
    )
    assert kl(clean, perturbed).item() == pytest.approx(
        naive_kl(clean.tolist(), perturbed.tolist()), rel=1e-5
    )
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(kl, clean, perturbed))


def test_double_precision_stays_double() -> None:
    assert widen(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    rows = (
        torch.tensor([0.3, 0.1], dtype=torch.float64),
        torch.tensor([0.3, 0.1 + 1e-6], dtype=torch.float64),
    )
    assert kl(*rows).item() == pytest.approx(naive_kl(rows[0].tolist(), rows[1].tolist()), rel=1e-3)


@few
@given(two_rows())
def test_the_symmetric_divergence_is_the_mean_of_both_directions(
    rows: tuple[list[float], list[float]],
) -> None:
    clean, perturbed = torch.tensor(rows[0]), torch.tensor(rows[1])
    mean = (kl(clean, perturbed) + kl(perturbed, clean)) / 2
    torch.testing.assert_close(symmetric_kl(clean, perturbed), mean, **CLOSE)
    torch.testing.assert_close(symmetric_kl(perturbed, clean), mean, **CLOSE)


def test_the_plain_divergence_is_from_clean_to_perturbed_and_not_the_other_way() -> None:
    certain, undecided = torch.tensor([50.0, 0.0]), torch.tensor([0.0, 0.0])
    assert divergence(certain, undecided, "kl", "classes").item() == pytest.approx(math.log(2))
    assert divergence(undecided, certain, "kl", "classes").item() == pytest.approx(25 - math.log(2))


@both
@few
@given(rows=two_rows(), shift=st.floats(-50, 50, width=32))
def test_a_constant_added_to_all_logits_changes_nothing_and_equal_predictions_do_not_diverge(
    rows: tuple[list[float], list[float]],
    shift: float,
    measure: Measure,
    naive: Callable[..., float],
    wide: Measure,
) -> None:
    clean, perturbed = torch.tensor(rows[0]), torch.tensor(rows[1])
    torch.testing.assert_close(
        measure(clean + shift, perturbed), measure(clean, perturbed), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(measure(clean, clean + shift), torch.tensor(0.0), **CLOSE)


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
def test_each_item_has_a_number_of_its_own(kind: Divergence) -> None:
    clean, perturbed = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    naive = naive_kl if kind == "kl" else naive_symmetric_kl
    expected = [
        [naive(*pair) for pair in zip(*rows, strict=True)]
        for rows in zip(clean.tolist(), perturbed.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        divergence(clean, perturbed, kind, "classes"), torch.tensor(expected)
    )


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
def test_independent_labels_diverge_by_the_sum_of_their_yes_no_divergences(
    kind: Divergence,
) -> None:
    clean, perturbed = 5 * torch.randn(4, 3), 5 * torch.randn(4, 3)
    naive = naive_kl if kind == "kl" else naive_symmetric_kl
    expected = [
        math.fsum(naive([0.0, x], [0.0, y]) for x, y in zip(*rows, strict=True))
        for rows in zip(clean.tolist(), perturbed.tolist(), strict=True)
    ]
    torch.testing.assert_close(divergence(clean, perturbed, kind, "labels"), torch.tensor(expected))


def test_a_label_is_certain_on_both_sides_without_overflow() -> None:
    rows = torch.tensor([[200.0]]), torch.tensor([[-200.0]])
    gradient = gradients(
        lambda clean, perturbed: divergence(clean, perturbed, "kl", "labels"), *rows
    )
    assert divergence(*rows, "kl", "labels").item() == pytest.approx(200)
    torch.testing.assert_close(gradient[1], torch.tensor([[-1.0]]))  # σ(−200) − σ(200)


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
def test_regression_diverges_by_the_squared_difference_whatever_the_kind(kind: Divergence) -> None:
    clean, perturbed = (
        torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
        torch.tensor([[0.0, 4.0], [3.0, -3.0]]),
    )
    assert divergence(clean, perturbed, kind, "value").tolist() == [5.0, 9.0]


def test_predictions_of_shape_b_by_1_and_b_are_not_broadcast_against_each_other() -> None:
    with pytest.raises(ValueError, match=r"equal shapes, got \(4, 1\) and \(4,\)"):
        squared_error(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(ValueError, match=r"equal shapes, got \(4,\) and \(4, 1\)"):
        divergence(torch.zeros(4), torch.zeros(4, 1), "kl", "value")


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
@pytest.mark.parametrize("prediction", ["classes", "labels", "value"])
def test_the_gradient_flows_through_both_predictions_unless_the_clean_one_is_detached(
    kind: Divergence, prediction: Prediction
) -> None:
    clean, perturbed = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    both_ways = torch.autograd.grad(
        divergence(clean, perturbed, kind, prediction).sum(), (clean, perturbed)
    )
    detached = torch.autograd.grad(
        divergence(clean, perturbed, kind, prediction, detach_clean=True).sum(),
        (clean, perturbed),
        allow_unused=True,
    )
    assert both_ways[0].abs().min() > 0
    assert detached[0] is None
    torch.testing.assert_close(detached[1], both_ways[1])


# ---- more logits than are taken at once


def many(
    seed: int, rows: int, classes: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = 4 * torch.randn(2, rows, 2, classes, generator=generator, dtype=torch.float64)
    return drawn[0].to(dtype), drawn[1].to(dtype)


@both
@few
@given(
    seed=st.integers(0, 99),
    rows=st.integers(1, 7),
    classes=st.integers(2, 6),
    at_once=st.integers(1, 20),
)
def test_taking_the_rows_in_parts_changes_neither_values_nor_gradients(
    measure: Measure, naive: object, wide: Measure, seed: int, rows: int, classes: int, at_once: int
) -> None:
    clean, perturbed = many(seed, rows, classes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergences, "ENTRIES_AT_ONCE", at_once)
        mine, slopes = measure(clean, perturbed), gradients(measure, clean, perturbed)
    assert mine.shape == (rows, 2)
    torch.testing.assert_close(mine, wide(clean, perturbed), rtol=1e-9, atol=1e-9)
    for slope, reference in zip(slopes, gradients(wide, clean, perturbed), strict=True):
        torch.testing.assert_close(slope, reference, rtol=1e-9, atol=1e-9)


@both
def test_each_row_keeps_the_weight_its_loss_gives_it_when_rows_are_taken_in_parts(
    measure: Measure, naive: object, wide: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 5)
    weights = torch.tensor([[0.0, 1.0], [2.0, -3.0], [0.5, 0.0]], dtype=torch.float64)
    weighted = [lambda p, q, one=one: weights * one(p, q) for one in (measure, wide)]
    mine, theirs = (gradients(one, *many(1, 3, 4)) for one in weighted)
    for slope, reference in zip(mine, theirs, strict=True):
        torch.testing.assert_close(slope, reference, rtol=1e-9, atol=1e-9)


@both
def test_large_half_precision_logits_get_half_precision_gradients_of_float32_arithmetic(
    measure: Measure, naive: object, wide: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 8)
    halves = many(2, 5, 4, torch.bfloat16)
    slopes = gradients(measure, *halves)
    doubles = gradients(wide, *(logits.double() for logits in halves))
    for slope, reference in zip(slopes, doubles, strict=True):
        assert slope.dtype == torch.bfloat16
        torch.testing.assert_close(slope.double(), reference, rtol=2**-7, atol=1e-6)


@both
@pytest.mark.parametrize(("clean", "perturbed"), FAR_APART)
def test_logits_far_apart_are_safe_in_parts_too(
    measure: Measure, naive: object, wide: Measure, clean: list[float], perturbed: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 1)
    rows = torch.tensor([clean, clean]), torch.tensor([perturbed, perturbed])
    assert torch.isfinite(measure(*rows)).all()
    assert all(torch.isfinite(slope).all() for slope in gradients(measure, *rows))


@both
def test_nothing_of_the_size_of_the_logits_is_kept_for_the_backward_pass_but_the_logits(
    measure: Measure, naive: object, wide: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 8)
    clean, perturbed = (logits.requires_grad_() for logits in many(3, 6, 4, torch.float32))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: kept.append(saved) or saved, lambda saved: saved
    ):
        measure(clean, perturbed)
    large = [saved for saved in kept if saved.numel() >= clean.numel()]
    assert sorted(saved.data_ptr() for saved in large) == sorted(
        [clean.data_ptr(), perturbed.data_ptr()]
    )


def test_a_detached_clean_prediction_gets_no_gradient_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 8)
    clean, perturbed = (logits.requires_grad_() for logits in many(4, 6, 4))
    divergence(clean, perturbed, "kl", "classes", detach_clean=True).sum().backward()
    assert clean.grad is None
    assert perturbed.grad is not None
