from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advreg.core.ascent import Ascent, EndRule, StepRule, ascend, input_gradient
from advreg.core.ball import Ball, Start
from advreg.core.perturbation import Perturbation
from padded import (
    SIDES,
    Side,
    few,
    lengths,
    on_padding,
    padded,
    perturbation,
    random_samples,
    real,
    same,
    seeds,
    sides,
)

RULES: tuple[StepRule, ...] = ("normalised", "gradient", "sign")
ENDS: tuple[EndRule, ...] = ("project", "rescale")
every_rule = pytest.mark.parametrize("rule", RULES)
every_end = pytest.mark.parametrize("end", ENDS)


def along(
    slopes: list[Tensor], side: Side = "right", extra: int = 0, junk: float = 0.0
) -> Callable[..., Tensor]:
    """⟨slope, δ⟩ summed over the batch, whose gradient is the slope itself; padding has the slope
    ``junk``.
    """
    slope, _ = padded(slopes, side, extra, fill=junk)
    return lambda delta: (slope * delta.values["tokens"]).sum()


def naive_ascent(start: Tensor, target: Tensor, ascent: Ascent, radius: float) -> Tensor:
    """Climb −½‖δ − target‖², gradient target − δ, one sample, l2 ball over the sample, written out
    in full.
    """
    delta = start.double()
    for _ in range(ascent.steps):
        gradient = target.double() - delta
        if ascent.rule == "normalised":
            gradient = gradient / gradient.pow(2).sum().sqrt()
        elif ascent.rule == "sign":
            gradient = torch.where(gradient > 0, 1.0, -1.0).double()
        delta = delta + ascent.step_size * gradient
        norm = delta.pow(2).sum().sqrt()
        if ascent.end == "rescale" or norm > radius:
            delta = delta * radius / norm
    return delta.float()


@every_rule
@every_end
@few
@given(sizes=lengths, seed=seeds, side=sides, steps=st.integers(0, 4), step_size=st.floats(0.01, 1))
def test_the_path_is_the_one_written_out_by_hand(
    rule: StepRule,
    end: EndRule,
    sizes: list[int],
    seed: int,
    side: Side,
    steps: int,
    step_size: float,
) -> None:
    ascent = Ascent(steps, step_size, rule, end)
    targets, starts = random_samples(sizes, seed), random_samples(sizes, seed + 1, scale=0.05)
    goal, _ = padded(targets, side, extra=1)
    climbed = ascend(
        lambda delta: -0.5 * (delta.values["tokens"] - goal).square().sum(),
        perturbation(starts, side, extra=1),
        ascent,
        Ball(0.7),
    )
    expected = [
        naive_ascent(start, target, ascent, 0.7)
        for start, target in zip(starts, targets, strict=True)
    ]
    torch.testing.assert_close(real(climbed), expected, rtol=1e-3, atol=1e-5)


def test_what_is_returned_is_delta_itself_and_not_how_far_it_went_from_the_start() -> None:
    start, slope = torch.tensor([[0.3, 0.0]]), torch.tensor([[0.0, 2.0]])
    climbed = ascend(along([slope]), perturbation([start]), Ascent(1, 0.1), Ball(1.0))
    torch.testing.assert_close(real(climbed)[0], torch.tensor([[0.3, 0.1]]))


def test_without_a_step_the_start_comes_back_as_it_was() -> None:
    samples = random_samples([2, 3], seed=1, scale=0.01)
    assert same(
        real(ascend(along(samples), perturbation(samples), Ascent(0, 0.1), Ball(1.0))), samples
    )


@every_rule
def test_only_rescaling_leaves_the_inside_of_the_ball(rule: StepRule) -> None:
    start, slope = perturbation([torch.tensor([[0.1, 0.0]])]), torch.tensor([[1.0, 0.0]])
    ended = {
        end: ascend(along([slope]), start, Ascent(1, 0.2, rule, end), Ball(1.0)) for end in ENDS
    }
    assert real(ended["project"])[0].norm().item() == pytest.approx(0.3)
    assert real(ended["rescale"])[0].norm().item() == pytest.approx(1.0)


@every_rule
@every_end
@pytest.mark.parametrize("junk", [0.0, 1e4, math.nan, math.inf])
def test_a_gradient_on_padding_moves_neither_padding_nor_a_real_token(
    rule: StepRule, end: EndRule, junk: float
) -> None:
    starts, slopes = (
        random_samples([2, 4, 1], seed=2, scale=0.05),
        random_samples([2, 4, 1], seed=3),
    )
    ascent, ball = Ascent(2, 0.1, rule, end), Ball(0.3)
    alone = [
        real(ascend(along([slope]), perturbation([start]), ascent, ball))[0]
        for start, slope in zip(starts, slopes, strict=True)
    ]
    for side in SIDES:
        for extra in (0, 5):
            climbed = ascend(
                along(slopes, side, extra, junk), perturbation(starts, side, extra), ascent, ball
            )
            torch.testing.assert_close(real(climbed), alone)
            assert not on_padding(climbed).any()


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@every_rule
def test_a_gradient_that_is_not_finite_at_a_real_token_raises_and_names_the_stream(
    rule: StepRule, junk: float
) -> None:
    slopes = random_samples([2, 3], seed=4)
    slopes[1][2, 0] = junk
    delta = perturbation(
        {"encoder": random_samples([2, 3], seed=5), "decoder": random_samples([2, 3], seed=6)}
    )
    gradient = perturbation({"encoder": random_samples([2, 3], seed=7), "decoder": slopes})
    with pytest.raises(
        FloatingPointError, match="stream 'decoder' is not finite; lower step_size or radius"
    ):
        Ascent(1, 0.1, rule).move(delta, gradient, Ball(1.0))


@every_rule
@every_end
def test_a_zero_gradient_leaves_delta_where_it_is(rule: StepRule, end: EndRule) -> None:
    on_surface = [torch.tensor([[0.6, 0.8]]), torch.tensor([[0.0, 1.0]])]
    flat = along([torch.zeros(1, 2), torch.zeros(1, 2)])
    torch.testing.assert_close(
        real(ascend(flat, perturbation(on_surface), Ascent(3, 0.5, rule, end), Ball(1.0))),
        on_surface,
    )


@every_end
def test_a_zero_gradient_at_a_zero_start_stays_at_zero(end: EndRule) -> None:
    zero = [torch.zeros(2, 2)]
    assert same(
        real(ascend(along(zero), perturbation(zero), Ascent(2, 0.5, end=end), Ball(1.0))), zero
    )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_normalised_step_has_the_length_of_the_step_size_however_small_the_gradient(
    scale: float,
) -> None:
    slopes = [scale * slope for slope in random_samples([3, 1], seed=8)]
    climbed = ascend(
        along(slopes),
        perturbation([torch.zeros(3, 3), torch.zeros(1, 3)]),
        Ascent(1, 0.25),
        Ball(1.0),
    )
    assert [sample.norm().item() for sample in real(climbed)] == pytest.approx(
        [0.25, 0.25], rel=1e-4
    )


def test_the_normalised_step_is_measured_in_the_norm_and_the_scope_of_the_ball() -> None:
    slope = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    delta, gradient = perturbation([torch.zeros(2, 2)]), perturbation([slope])
    moved = {
        ball: real(Ascent(1, 1.0).move(delta, gradient, ball))[0]
        for ball in (
            Ball(9, "l2", "sample"),
            Ball(9, "l2", "token"),
            Ball(9, "linf", "sample"),
            Ball(9, "linf", "token"),
        )
    }
    torch.testing.assert_close(moved[Ball(9, "l2", "sample")], slope / math.sqrt(29))
    torch.testing.assert_close(
        moved[Ball(9, "l2", "token")], torch.tensor([[0.6, 0.8], [0.0, 1.0]])
    )
    torch.testing.assert_close(moved[Ball(9, "linf", "sample")], slope / 4)
    torch.testing.assert_close(
        moved[Ball(9, "linf", "token")], torch.tensor([[0.75, 1.0], [0.0, 1.0]])
    )


@every_rule
@every_end
@few
@given(sizes=lengths, seed=seeds)
def test_shuffling_the_batch_shuffles_the_result(
    rule: StepRule, end: EndRule, sizes: list[int], seed: int
) -> None:
    starts, slopes = random_samples(sizes, seed, scale=0.1), random_samples(sizes, seed + 1)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    ascent, ball = Ascent(2, 0.1, rule, end), Ball(0.5)
    straight = real(ascend(along(slopes), perturbation(starts), ascent, ball))
    shuffled_objective = along([slopes[at] for at in order])
    shuffled = real(
        ascend(shuffled_objective, perturbation([starts[at] for at in order]), ascent, ball)
    )
    torch.testing.assert_close(shuffled, [straight[at] for at in order])


def test_the_ascent_touches_no_parameter_and_no_flag() -> None:
    trained, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    frozen.requires_grad_(False)
    trained.weight.grad = torch.full_like(trained.weight, 5.0)
    start = Start().draw(perturbation([torch.zeros(4, 3)]), Ball(0.5))
    ascend(
        lambda delta: frozen(trained(delta.values["tokens"]).tanh()).sum(),
        start,
        Ascent(3, 0.1),
        Ball(0.5),
    )
    assert bool((trained.weight.grad == 5).all())
    assert trained.bias.grad is None
    assert [p.requires_grad for p in (*trained.parameters(), *frozen.parameters())] == [
        True,
        True,
        False,
        False,
    ]


def test_the_start_is_left_alone_and_the_result_carries_no_graph() -> None:
    samples = random_samples([2, 3], seed=9, scale=0.01)
    start = perturbation(samples)
    climbed = ascend(along(samples), start, Ascent(2, 0.1), Ball(1.0))
    assert same(real(start), samples)
    assert not any(
        value.requires_grad for value in (*start.values.values(), *climbed.values.values())
    )


def test_both_streams_move_by_one_gradient_a_step() -> None:
    taken: list[Perturbation] = []

    def counted(objective: Tensor, delta: Perturbation) -> Perturbation:
        taken.append(delta)
        return input_gradient(objective, delta)

    streams = {
        "encoder": random_samples([2], seed=1, scale=0.1),
        "decoder": random_samples([4], seed=2, scale=0.1),
    }
    objective = lambda delta: delta.values["encoder"].sum() * delta.values["decoder"].sum()  # noqa: E731
    climbed = ascend(
        objective, perturbation(streams), Ascent(3, 0.1, "gradient"), Ball(10.0), counted
    )

    encoder, decoder = streams["encoder"][0], streams["decoder"][0]
    for _ in range(3):  # each stream's slope is the other's sum *before* the step
        encoder, decoder = encoder + 0.1 * decoder.sum(), decoder + 0.1 * encoder.sum()
    assert len(taken) == 3
    torch.testing.assert_close(real(climbed, "encoder")[0], encoder)
    torch.testing.assert_close(real(climbed, "decoder")[0], decoder)


def test_the_gradient_is_that_of_the_objective_and_a_stream_that_is_not_in_it_raises() -> None:
    delta = perturbation({"encoder": [torch.ones(1, 2)], "decoder": [torch.ones(1, 2)]}).leaf()
    gradient = input_gradient((delta.values["encoder"] * delta.values["decoder"] * 3).sum(), delta)
    assert {stream: values.tolist() for stream, values in gradient.values.items()} == {
        "encoder": [[[3.0, 3.0]]],
        "decoder": [[[3.0, 3.0]]],
    }
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        input_gradient(delta.values["encoder"].sum(), delta)


def test_the_graph_can_be_kept_for_a_second_gradient() -> None:
    delta = perturbation([torch.ones(1, 2)]).leaf()
    objective = delta.values["tokens"].square().sum()
    first = input_gradient(objective, delta, retain_graph=True)
    assert torch.equal(first.values["tokens"], input_gradient(objective, delta).values["tokens"])


@pytest.mark.parametrize(("steps", "shown"), [(-1, "-1"), (1.5, "1.5")])
def test_a_number_of_steps_that_is_none_is_refused(steps: float, shown: str) -> None:
    with pytest.raises(
        ValueError, match=f"ascent_steps must be a whole number of 0 or more, got {shown}"
    ):
        Ascent(steps, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("step_size", [0.0, -0.1, math.nan, math.inf])
def test_a_step_size_that_does_not_climb_is_refused(step_size: float) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"step_size must be a positive finite number, got {step_size}")
    ):
        Ascent(1, step_size)


def test_unknown_rules_are_refused_with_the_rules_there_are() -> None:
    with pytest.raises(
        ValueError, match="step_rule must be one of normalised, gradient, sign, got 'adam'"
    ):
        Ascent(1, 0.1, "adam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_end must be one of project, rescale, got 'clip'"):
        Ascent(1, 0.1, "sign", "clip")  # type: ignore[arg-type]
