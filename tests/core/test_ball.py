from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.ball import (
    Ball,
    Norm,
    Scope,
    Start,
    StartKind,
    inverse,
    normal_noise,
    uniform_noise,
)
from advreg.core.perturbation import Perturbation
from padded import (
    SIDES,
    Side,
    few,
    lengths,
    mask_of,
    on_padding,
    perturbation,
    random_samples,
    real,
    same,
    seeds,
    sides,
)

KINDS: list[tuple[Norm, Scope]] = [
    ("l2", "sample"),
    ("l2", "token"),
    ("linf", "sample"),
    ("linf", "token"),
]
kinds = st.sampled_from(KINDS)
every_kind = pytest.mark.parametrize(("norm", "scope"), KINDS)
MOVES: dict[str, Callable[[Ball, Perturbation], Perturbation]] = {
    "unit": Ball.unit,
    "project": Ball.project,
    "rescale": Ball.rescale,
}
every_move = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())


def naive_sizes(sample: Tensor, norm: Norm, scope: Scope) -> list[float]:
    """‖δ‖ of the sample, or of each of its tokens, in Python floats."""
    groups = [sample.flatten().tolist()] if scope == "sample" else sample.tolist()
    if norm == "linf":
        return [max(abs(x) for x in group) for group in groups]
    return [math.sqrt(math.fsum(x * x for x in group)) for group in groups]


def naive_move(sample: Tensor, ball: Ball, factor: Callable[[float], float]) -> Tensor:
    """Every token times ``factor(‖δ‖)``, where ‖δ‖ is the sample's or its own."""
    sizes = naive_sizes(sample, ball.norm, ball.scope)
    sizes = sizes * len(sample) if ball.scope == "sample" else sizes
    rows = zip(sample.tolist(), sizes, strict=True)
    return torch.tensor([[x * factor(size) for x in row] for row, size in rows], dtype=sample.dtype)


def sizes_of(delta: Perturbation, norm: Norm, scope: Scope) -> list[float]:
    return [size for sample in real(delta) for size in naive_sizes(sample, norm, scope)]


@few
@given(lengths, seeds, sides, st.integers(0, 3), kinds)
def test_the_size_is_the_norm_over_real_tokens_only(
    sizes: list[int], seed: int, side: Side, extra: int, kind: tuple[Norm, Scope]
) -> None:
    delta = perturbation(random_samples(sizes, seed), side, extra)
    measured = Ball(1.0, *kind).size(delta.values["tokens"])
    measured = measured[delta.masks["tokens"]] if kind[1] == "token" else measured
    assert measured.flatten().tolist() == pytest.approx(sizes_of(delta, *kind), rel=1e-5)


@few
@given(lengths, seeds, kinds, st.floats(0.01, 10))
def test_projection_leaves_the_inside_alone_and_brings_the_outside_to_the_surface(
    sizes: list[int], seed: int, kind: tuple[Norm, Scope], radius: float
) -> None:
    ball = Ball(radius, *kind)
    samples = random_samples(sizes, seed)
    for before, after in zip(samples, real(ball.project(perturbation(samples))), strict=True):
        if ball.norm == "linf":
            expected = torch.tensor(
                [[min(max(x, -radius), radius) for x in row] for row in before.tolist()]
            )
        else:
            expected = naive_move(before, ball, lambda size: min(1.0, radius / size))
        torch.testing.assert_close(after, expected)


@every_kind
def test_projection_does_not_touch_a_single_bit_inside_the_ball(norm: Norm, scope: Scope) -> None:
    samples = random_samples([3, 5, 1], seed=1, scale=0.1)
    assert same(real(Ball(10.0, norm, scope).project(perturbation(samples))), samples)


@few
@given(seeds, kinds)
def test_no_point_of_the_ball_is_nearer_than_the_projection(
    seed: int, kind: tuple[Norm, Scope]
) -> None:
    ball = Ball(0.7, *kind)
    outside = perturbation(random_samples([4], seed, scale=2.0))
    near = real(ball.project(outside))[0]
    for other in range(5):
        inside = real(Start("uniform").draw(outside, ball))[0] * (other + 1) / 5
        assert (real(outside)[0] - near).norm() <= (real(outside)[0] - inside).norm() + 1e-5


@few
@given(lengths, seeds, kinds, st.floats(0.01, 10))
def test_projecting_twice_is_projecting_once(
    sizes: list[int], seed: int, kind: tuple[Norm, Scope], radius: float
) -> None:
    ball = Ball(radius, *kind)
    once = ball.project(perturbation(random_samples(sizes, seed)))
    assert ball.contains(once)
    torch.testing.assert_close(ball.project(once).values["tokens"], once.values["tokens"])


@few
@given(lengths, seeds, kinds, st.floats(0.01, 10))
def test_rescaling_reaches_the_surface_from_inside_as_well_as_from_outside(
    sizes: list[int], seed: int, kind: tuple[Norm, Scope], radius: float
) -> None:
    ball = Ball(radius, *kind)
    samples = random_samples(sizes, seed)
    for before, after in zip(samples, real(ball.rescale(perturbation(samples))), strict=True):
        torch.testing.assert_close(after, naive_move(before, ball, lambda size: radius / size))


@every_kind
def test_project_and_rescale_differ_inside_the_ball_and_only_rescale_moves(
    norm: Norm, scope: Scope
) -> None:
    ball = Ball(1.0, norm, scope)
    inside = perturbation(random_samples([2, 3], seed=5, scale=1e-3))
    assert torch.equal(ball.project(inside).values["tokens"], inside.values["tokens"])
    assert sizes_of(ball.rescale(inside), norm, scope) == pytest.approx(
        [1.0] * (2 if scope == "sample" else 5)
    )


@every_kind
@every_move
def test_padding_side_and_width_change_no_real_token(
    norm: Norm, scope: Scope, move: Callable[[Ball, Perturbation], Perturbation]
) -> None:
    samples = random_samples([2, 5, 1], seed=6)
    ball = Ball(0.3, norm, scope)
    alone = [real(move(ball, perturbation([sample])))[0] for sample in samples]
    for side in SIDES:
        for extra in (0, 7):
            moved = move(ball, perturbation(samples, side, extra))
            torch.testing.assert_close(real(moved), alone)
            assert not on_padding(moved).any()


@every_kind
@every_move
def test_a_zero_stays_zero_and_does_not_disturb_its_neighbour(
    norm: Norm, scope: Scope, move: Callable[[Ball, Perturbation], Perturbation]
) -> None:
    sample = random_samples([3], seed=7)[0]
    ball = Ball(0.5, norm, scope)
    zero, other = real(move(ball, perturbation([torch.zeros(2, 3), sample])))
    assert torch.equal(zero, torch.zeros(2, 3))
    torch.testing.assert_close(other, real(move(ball, perturbation([sample])))[0])


def test_the_inverse_of_zero_is_zero_and_its_neighbours_keep_theirs() -> None:
    assert inverse(torch.tensor([0.0, 0.5, 4.0])).tolist() == [0.0, 2.0, 0.25]


@every_kind
@pytest.mark.parametrize("scale", [1e-30, 1e-37, 1e30])
def test_a_gradient_of_any_magnitude_normalises_to_unit_length(
    norm: Norm, scope: Scope, scale: float
) -> None:
    samples = random_samples([3, 2], seed=8)
    tiny = Ball(1.0, norm, scope).unit(perturbation([scale * sample for sample in samples]))
    torch.testing.assert_close(
        real(tiny), real(Ball(1.0, norm, scope).unit(perturbation(samples))), rtol=1e-4, atol=0
    )
    assert sizes_of(tiny, norm, scope) == pytest.approx(
        [1.0] * (2 if scope == "sample" else 5), rel=1e-4
    )


@every_kind
def test_rescaling_a_tiny_vector_onto_a_large_ball_does_not_overflow(
    norm: Norm, scope: Scope
) -> None:
    tiny = perturbation([torch.tensor([[3e-38, 0.0]])])
    assert real(Ball(100.0, norm, scope).rescale(tiny))[0].tolist() == [[pytest.approx(100.0), 0.0]]


@every_kind
def test_the_ball_of_radius_zero_holds_nothing_but_zero(norm: Norm, scope: Scope) -> None:
    ball = Ball(0.0, norm, scope)
    delta = perturbation(random_samples([2, 3], seed=9))
    for moved in (ball.project(delta), ball.rescale(delta), Start("uniform").draw(delta, ball)):
        assert not moved.values["tokens"].any()
        assert ball.contains(moved)
    assert not ball.contains(delta)


def test_one_sample_of_one_stream_outside_is_outside() -> None:
    inside, outside = torch.tensor([[0.6, 0.7]]), torch.tensor([[0.8, 0.7]])
    assert Ball(1.0).contains(
        perturbation({"encoder": [inside, inside], "decoder": [inside, inside]})
    )
    assert not Ball(1.0).contains(
        perturbation({"encoder": [inside, inside], "decoder": [inside, outside]})
    )
    assert Ball(1.0, "linf").contains(perturbation({"encoder": [inside], "decoder": [outside]}))


def test_each_stream_has_a_ball_of_its_own() -> None:
    streams = {
        "encoder": random_samples([2], seed=1),
        "decoder": random_samples([3], seed=2, scale=100.0),
    }
    moved = Ball(0.5).rescale(perturbation(streams))
    assert [real(moved, stream)[0].norm().item() for stream in streams] == pytest.approx([0.5, 0.5])


@every_kind
@pytest.mark.parametrize("radius", [1e-4, 0.1, 3.0])
def test_a_uniform_start_lies_exactly_on_the_surface(
    norm: Norm, scope: Scope, radius: float
) -> None:
    zeros = Perturbation.zeros(
        {"tokens": mask_of([4, 1, 7], extra=3)}, {"tokens": 6}, torch.float32
    )
    start = Start("uniform").draw(zeros, Ball(radius, norm, scope))
    assert sizes_of(start, norm, scope) == pytest.approx(
        [radius] * (3 if scope == "sample" else 12), rel=1e-5
    )


def test_uniform_noise_fills_the_interval_evenly() -> None:
    mask = mask_of([40, 60])
    noise = uniform_noise(torch.zeros(*mask.shape, 50), mask)[mask]  # 5000 entries
    tenths, _ = torch.histogram(noise.flatten(), bins=10, range=(-1.0, 1.0))
    assert noise.abs().max() <= 1
    assert tenths.sum() == noise.numel()
    assert bool(((tenths > 350) & (tenths < 650)).all())  # 500 expected, standard deviation 21


def test_normal_noise_has_the_standard_deviation_asked_for() -> None:
    mask = mask_of([40, 60])
    noise = normal_noise(torch.zeros(*mask.shape, 50), mask, scale=1e-5)[mask]
    assert noise.std().item() == pytest.approx(1e-5, rel=0.1)
    assert abs(noise.mean().item()) < 1e-6
    assert (
        0.2 < (noise.abs() > 1e-5).float().mean().item() < 0.45
    )  # a normal has 0.317 beyond one deviation


def test_a_normal_start_larger_than_the_ball_is_projected_into_it_and_a_smaller_one_is_not_blown_up() -> (
    None
):
    zeros = Perturbation.zeros({"tokens": mask_of([4, 9])}, {"tokens": 6}, torch.float32)
    assert sizes_of(Start("normal", 1.0).draw(zeros, Ball(0.1)), "l2", "sample") == pytest.approx(
        [0.1, 0.1]
    )
    assert max(sizes_of(Start("normal", 1e-5).draw(zeros, Ball(0.1)), "l2", "sample")) < 2e-4


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@every_kind
def test_a_start_follows_the_tokens_whatever_the_padding(
    kind: StartKind, norm: Norm, scope: Scope
) -> None:
    ball = Ball(0.1, norm, scope)
    drawn = []
    for side in SIDES:
        for extra in (0, 6):
            masks = {
                "encoder": mask_of([3, 1, 5], side, extra),
                "decoder": mask_of([2, 4, 1], side, extra),
            }
            zeros = Perturbation.zeros(masks, {"encoder": 4, "decoder": 2}, torch.float32)
            torch.manual_seed(11)
            start = Start(kind).draw(zeros, ball)
            assert not on_padding(start).any()
            drawn.append(real(start, "encoder") + real(start, "decoder"))
    for others in drawn[1:]:
        torch.testing.assert_close(others, drawn[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("radius", [-0.3, math.nan, math.inf])
def test_a_radius_below_zero_or_not_finite_is_refused(radius: float) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"radius must be a finite number of 0 or more, got {radius}")
    ):
        Ball(radius)


@pytest.mark.parametrize("scale", [0.0, -1e-5, math.nan, math.inf])
def test_a_start_without_a_scale_is_refused(scale: float) -> None:
    with pytest.raises(
        ValueError, match=f"start_scale must be a positive finite number, got {scale}"
    ):
        Start("normal", scale)


def test_unknown_choices_are_refused_with_the_choices_there_are() -> None:
    with pytest.raises(ValueError, match="norm must be one of l2, linf, got 'l1'"):
        Ball(1.0, "l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scope must be one of sample, token, got 'batch'"):
        Ball(1.0, "l2", "batch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start must be one of uniform, normal, got 'zero'"):
        Start("zero")  # type: ignore[arg-type]
