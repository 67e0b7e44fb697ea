from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core import divergence as divergences
from advreg.core.scramble import uniform
from advreg.core.sketch import (
    Drawn,
    Lumped,
    Parts,
    Sketch,
    Whole,
    inverse_cumulative,
    log_sum_of_others,
    sketch_for,
)

V = 40
CASES: list[tuple[str, Any]] = [
    ("soft", 1.0),
    ("sharp", 8.0),
    ("uniform", 0.0),
]


def logits_of(rows: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(
        rows, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def uniforms_of(rows: int, draws: int, first: int = 0) -> Tensor:
    return uniform(torch.arange(first, first + rows * draws)).view(rows, draws)


def kept(sketch: Sketch, parts: Parts) -> Parts:
    """As they come back from where they are stored."""
    return {name: value.to(sketch.fields[name][1]) for name, value in parts.items()}


def exact_kl(q: Tensor, logits: Tensor) -> Tensor:
    return (torch.special.xlogy(q, q) - q * torch.log_softmax(logits, -1)).sum(-1)


def slope(sketch: Sketch, parts: Parts, logits: Tensor) -> Tensor:
    point = logits.clone().requires_grad_()
    sketch.divergence(parts, point).sum().backward()
    assert point.grad is not None
    return point.grad


# ---- whole predictions


def test_a_whole_prediction_gives_the_exact_divergence() -> None:
    then, now = logits_of(5), logits_of(5, seed=1)
    sketch = Whole(V)
    parts = sketch.encode(then, uniforms_of(5, 0))
    assert torch.allclose(
        sketch.divergence(parts, now), exact_kl(torch.softmax(then, -1), now), atol=1e-12
    )
    half = sketch.divergence(kept(sketch, parts), now)
    assert torch.allclose(half, exact_kl(torch.softmax(then, -1), now), atol=2e-3)


def test_several_labels_are_kept_as_yes_and_no_of_each() -> None:
    then, now = logits_of(5), logits_of(5, seed=1)
    sketch = Whole(V, "labels")
    parts = sketch.encode(then, uniforms_of(5, 0))
    q, p = torch.sigmoid(then), torch.sigmoid(now)
    expected = (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()).sum(-1)
    assert torch.allclose(sketch.divergence(parts, now), expected, atol=1e-10)
    assert kept(sketch, parts)["probabilities"].shape == (5, 2 * V)


def test_values_are_kept_in_float32_and_compared_by_the_squared_error() -> None:
    then = torch.tensor([[70_000.0], [1.5]], dtype=torch.float64)
    sketch = Whole(1, "value")
    parts = kept(sketch, sketch.encode(then, uniforms_of(2, 0)))
    assert torch.allclose(
        sketch.divergence(parts, then + 2), torch.full((2,), 4.0, dtype=torch.float64)
    )


@pytest.mark.parametrize("sketch", [Whole(V), Whole(V, "labels"), Lumped(V, 4), Drawn(V, 4, 2)])
def test_what_was_never_written_gives_finite_numbers_and_no_gradient_where_it_is_masked(
    sketch: Sketch,
) -> None:
    parts = {
        name: torch.zeros(3, width, dtype=dtype) for name, (width, dtype) in sketch.fields.items()
    }
    point = logits_of(3, scale=30.0).requires_grad_()
    found = sketch.divergence(parts, point)
    assert bool(found.isfinite().all())
    found.masked_fill(torch.ones(3, dtype=torch.bool), 0.0).sum().backward()
    assert point.grad is not None
    assert not bool(point.grad.any())


def test_probabilities_that_are_zero_in_half_precision_do_no_harm() -> None:
    then, now = logits_of(4, scale=20.0), logits_of(4, seed=1)
    for sketch in (Whole(V), Lumped(V, 4), Drawn(V, 4, 2)):
        parts = kept(sketch, sketch.encode(then, uniforms_of(4, sketch.draws)))
        assert bool(sketch.divergence(parts, now).isfinite().all())
        assert bool(slope(sketch, parts, now).isfinite().all())


# ---- the lumped tail


def test_the_lumped_divergence_is_that_of_k_plus_one_outcomes() -> None:
    then, now = logits_of(6), logits_of(6, seed=1)
    sketch = Lumped(V, 5)
    parts = sketch.encode(then, uniforms_of(6, 0))
    q, p = torch.softmax(then, -1), torch.softmax(now, -1)
    for row in range(6):
        top = q[row].argsort(descending=True)[:5]
        outcomes = [(q[row, v], p[row, v]) for v in top]
        outcomes.append((1 - q[row, top].sum(), 1 - p[row, top].sum()))
        expected = sum(float(a * (a / b).log()) for a, b in outcomes)
        assert float(sketch.divergence(parts, now)[row]) == pytest.approx(expected, abs=1e-10)
    assert bool((sketch.divergence(parts, now) <= exact_kl(q, now)).all())


@pytest.mark.parametrize("sketch", [Lumped(V, V), Drawn(V, V, 3)])
def test_with_all_entries_in_it_a_sketch_gives_the_exact_divergence_and_gradient(
    sketch: Sketch,
) -> None:
    then, now = logits_of(6), logits_of(6, seed=1)
    parts = sketch.encode(then, uniforms_of(6, sketch.draws))
    q = torch.softmax(then, -1)
    assert torch.allclose(sketch.divergence(parts, now), exact_kl(q, now), atol=1e-10)
    assert torch.allclose(slope(sketch, parts, now), torch.softmax(now, -1) - q, atol=1e-10)


@pytest.mark.parametrize("entry", [8, 2**16, 2**16 + 1])
def test_entries_beyond_those_of_a_signed_number_of_two_bytes_come_back(entry: int) -> None:
    logits = torch.randn(3, entry)
    logits[:, -1] = 30.0
    sketch = Lumped(entry, 2)
    parts = kept(sketch, sketch.encode(logits, uniforms_of(3, 0)))
    assert sketch.fields["entries"][1] == (torch.int16 if entry <= 2**16 else torch.int32)
    assert bool((sketch.divergence(parts, logits).abs() < 1e-3).all())


def test_a_tail_far_below_the_resolution_of_the_whole_still_has_its_gradient() -> None:
    """1 − Σ_top p would be 0, and pull nothing."""
    now = torch.tensor([[60.0, 1.0, 0.0, 0.0]])
    parts = {
        "entries": torch.tensor([[0]]),
        "likeliest": torch.tensor([[0.5]]),
        "rest": torch.tensor([[0.5]]),
    }
    found = slope(Lumped(4, 1), parts, now)
    tail = torch.softmax(now[0, 1:], -1)
    assert torch.allclose(found[0], torch.cat([torch.tensor([0.5]), -0.5 * tail]), atol=1e-6)


# ---- the drawn tail


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_the_drawn_divergence_and_its_gradient_are_unbiased(name: str, scale: float) -> None:
    """The mean over many sketches lies within four standard errors of the exact value, also along
    fixed directions.
    """
    many, draws = 10_000, 3
    then, now = logits_of(1, scale), logits_of(1, seed=1)
    sketch = Drawn(V, 4, draws)
    parts = sketch.encode(then.expand(many, V), uniforms_of(many, draws))
    rows = now.expand(many, V)
    q = torch.softmax(then, -1)
    directions = torch.randn(V, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    exact = (torch.softmax(now, -1) - q) @ directions
    found = torch.cat(
        [sketch.divergence(parts, rows)[:, None], slope(sketch, parts, rows) @ directions], 1
    )
    expected = torch.cat([exact_kl(q, now)[:, None], exact], 1)[0]
    error = found.std(0) / many**0.5
    assert bool(((found.mean(0) - expected).abs() <= 4 * error + 1e-12).all())
    assert bool((error > 0).all())


def test_a_tail_of_denormal_numbers_is_drawn_from_in_proportion() -> None:
    weights = torch.tensor([[0.0, 1e-310, 0.0, 3e-310]], dtype=torch.float64).expand(4000, 4)
    drawn = inverse_cumulative(weights, uniform(torch.arange(4000))[:, None])
    assert set(drawn.flatten().tolist()) == {1, 3}
    assert float((drawn == 3).double().mean()) == pytest.approx(0.75, abs=0.03)


def test_a_prediction_that_is_sure_has_nothing_to_draw_and_that_is_no_error() -> None:
    then = torch.full((2, V), -1000.0)
    then[:, 7] = 0.0
    sketch = Drawn(V, 1, 3)
    parts = sketch.encode(then, uniforms_of(2, 3))
    now = logits_of(2)
    assert torch.allclose(
        sketch.divergence(parts, now), -torch.log_softmax(now, -1)[:, 7], atol=1e-6
    )


def test_the_noise_of_the_drawn_tail_is_at_most_that_of_independent_draws() -> None:
    many, draws = 4000, 4
    then, now = logits_of(1), logits_of(1, seed=1)
    sketch = Drawn(V, 8, draws)
    found = slope(
        sketch, sketch.encode(then.expand(many, V), uniforms_of(many, draws)), now.expand(many, V)
    )
    q = torch.softmax(then, -1)[0]
    tail = q.sort(descending=True).values[8:]
    independent = tail.sum() ** 2 * (1 - ((tail / tail.sum()) ** 2).sum()) / draws
    assert float(found.var(0).sum()) <= 1.05 * float(independent)


def test_the_last_uniform_number_below_one_draws_an_entry_that_has_a_weight() -> None:
    weights = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float32)
    almost = torch.tensor([[1 - 2**-53, 0.0]], dtype=torch.float64)
    assert inverse_cumulative(weights, almost).tolist() == [[1, 0]]


# ---- what it costs


def test_the_sum_of_other_entries_agrees_with_autograd_a_part_of_the_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 2 * V)
    logits = logits_of(7)
    entries = logits.topk(4).indices
    weights = torch.arange(7, dtype=torch.float64)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (weights * log_sum_of_others(mine, entries)).sum().backward()
    (weights * theirs.scatter(-1, entries, -torch.inf).logsumexp(-1)).sum().backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-14)
    assert torch.autograd.gradcheck(
        lambda z: log_sum_of_others(z, entries), logits.clone().requires_grad_()
    )


@pytest.mark.parametrize("sketch", [Lumped(V, 4), Drawn(V, 4, 2)])
def test_the_rows_of_a_part_are_kept_as_those_of_the_whole(
    sketch: Sketch, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, uniforms = logits_of(7), uniforms_of(7, sketch.draws)
    whole = sketch.encode(logits, uniforms)
    monkeypatch.setattr(divergences, "ENTRIES_AT_ONCE", 2 * V)
    parts = sketch.encode(logits, uniforms)
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_half_precision_logits_are_compared_in_float32() -> None:
    then, now = logits_of(5).bfloat16(), logits_of(5, seed=1).bfloat16()
    for sketch in (Whole(V), Lumped(V, 4), Drawn(V, 4, 2)):
        parts = sketch.encode(then, uniforms_of(5, sketch.draws))
        found = sketch.divergence(parts, now)
        assert found.dtype == torch.float32
        assert torch.allclose(
            found,
            sketch.divergence(
                sketch.encode(then.float(), uniforms_of(5, sketch.draws)), now.float()
            ),
        )


@pytest.mark.parametrize(
    ("sketch", "size"),
    [
        (Lumped(10_000, 8), 34),
        (Lumped(100_000, 8), 50),
        (Drawn(10_000, 8, 4), 44),
        (Drawn(100_000, 8, 4), 68),
        (Whole(3), 6),
        (Whole(3, "labels"), 12),
        (Whole(1, "value"), 4),
    ],
)
def test_a_row_takes_the_bytes_of_the_table(sketch: Sketch, size: int) -> None:
    parts = sketch.encode(torch.randn(2, getattr(sketch, "outputs")), uniforms_of(2, sketch.draws))  # noqa: B009
    stored = kept(sketch, parts)
    assert set(stored) == set(sketch.fields)
    assert sum(value[0].numel() * value.element_size() for value in stored.values()) == size


def test_automatic_sketches_are_whole_up_to_512_outputs() -> None:
    chosen = [sketch_for("auto", "classes", outputs, 8, 4) for outputs in (512, 513)]
    assert chosen == [Whole(512), Lumped(513, 8)]
    assert sketch_for("drawn", "classes", 100, 8, 4) == Drawn(100, 8, 4)
    assert sketch_for("whole", "classes", 50_000, 8, 4) == Whole(50_000)
    assert sketch_for("auto", "value", 1, 8, 4) == Whole(1, "value")


def test_a_sketch_that_does_not_fit_the_outputs_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"top must be at most the 40 outputs of the model, got 41; use sketch='whole'",
    ):
        sketch_for("lumped", "classes", 40, 41, 4)
    with pytest.raises(
        ValueError, match="sketch must be whole for several labels at once, got 'drawn'"
    ):
        sketch_for("drawn", "labels", 600, 8, 4)


def test_the_gradient_of_a_sketch_is_close_to_that_of_the_whole_distribution() -> None:
    then, now = logits_of(200, 1.5), logits_of(200, 1.5, seed=1)
    exact = torch.softmax(now, -1) - torch.softmax(then, -1)
    found = slope(Lumped(V, 8), Lumped(V, 8).encode(then, uniforms_of(200, 0)), now)
    assert float(F.cosine_similarity(found.flatten(), exact.flatten(), dim=0)) > 0.9
