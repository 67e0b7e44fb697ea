import math

import pytest
import torch
from torch import Tensor

import naive
from advreg.hf.view.view import HFModelView
from advreg.methods import create
from observe import batch_of, close, exact, gradients, step, watched

SETTINGS = {"radius": 0.12, "ascent_steps": 3, "step_size": 0.05, "start_scale": 0.1}


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("radius", [0.12, 0.03])  # reached late on the path; inside the start
def test_freelb_agrees_with_its_reference(family: str, radius: float) -> None:
    settings = SETTINGS | {"radius": radius}
    model, reference, batch = exact(family), exact(family), batch_of(family)
    task = HFModelView(model)
    task.widths(batch)
    with watched(model) as passes:
        report = step(create("freelb", **settings), task, batch)
    torch.manual_seed(0)
    expected = naive.freelb(reference, batch, **settings)
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert len(passes) == len(expected.path) == 4
    for one, deltas in zip(passes, expected.path, strict=True):
        for mine, theirs in zip(one.samples(task, batch), deltas, strict=True):
            assert all(
                torch.allclose(mine[stream], rows, atol=1e-6, rtol=0)
                for stream, rows in theirs.items()
            )
    assert close(gradients(model), gradients(reference))


@pytest.mark.parametrize("ascents", [0, 1, 2])
def test_freelb_trains_on_one_point_more_than_it_ascends(ascents: int) -> None:
    """Its K training points are δ_0 and the S after it; to take S for K is the bug to catch."""
    model, batch, losses = exact("bert"), batch_of("bert"), []
    task = HFModelView(model)
    task.widths(batch)
    with watched(model) as passes:
        method = create("freelb", **SETTINGS | {"ascent_steps": ascents})
        report = step(
            method,
            task,
            batch,
            backward=lambda loss: (losses.append(loss.detach()), loss.backward()),
        )
    assert len(passes) == len(losses) == 1 + ascents
    assert all(one.perturbed for one in passes)
    assert float(report.loss) == pytest.approx(
        float(losses[-1])
    )  # the total, of which one point is left to propagate
    assert len({round(float(loss), 9) for loss in points_of(losses)}) == 1 + ascents
    steps = [passes[i + 1].deltas["tokens"] - passes[i].deltas["tokens"] for i in range(ascents)]
    assert all(bool(moved.any()) for moved in steps)


def points_of(losses: list[Tensor]) -> list[Tensor]:
    """The losses of the points, of which the last one was propagated with the others' added as a
    constant.
    """
    return [*losses[:-1], losses[-1] - sum(losses[:-1])]


def test_freelb_starts_with_a_norm_of_about_its_magnitude_over_root_three() -> None:
    """U(−1, 1)·m/√(L·D), L the sentence's own length: the norm does not depend on length or
    padding.
    """
    model, batch = exact("bert"), batch_of("bert", lengths=[40, 12, 4])
    task = HFModelView(model)
    task.widths(batch)
    with watched(model) as passes:
        step(create("freelb", radius=10.0, ascent_steps=0, start_scale=0.3), task, batch)
    for rows in passes[0].samples(task, batch):
        assert float(rows["tokens"].norm()) == pytest.approx(0.3 / math.sqrt(3), rel=0.15)


def test_freelb_keeps_the_dropout_masks_over_its_points() -> None:
    """With δ = 0 everywhere the points differ by their masks alone."""
    batch = batch_of("bert")
    heard: dict[str, set[float]] = {}
    for dropout in ("shared", "fresh", "off"):
        losses: list[Tensor] = []
        method = create("freelb", radius=0.0, dropout=dropout)
        step(
            method,
            HFModelView(exact("bert", dropout=0.1)),
            batch,
            backward=lambda loss, to=losses: to.append(loss),
        )
        heard[dropout] = {round(float(loss.detach()), 9) for loss in points_of(losses)}
    assert len(heard["shared"]) == 1
    assert len(heard["fresh"]) == 3
    assert len(heard["off"]) == 1
    assert heard["shared"] != heard["off"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("radius", -1, "radius must be a finite number of 0 or more, got -1"),
        ("radius", math.inf, "radius must be a finite number of 0 or more, got inf"),
        ("ascent_steps", -1, "ascent_steps must be a whole number of 0 or more, got -1"),
        ("ascent_steps", 1.5, "ascent_steps must be a whole number.*, got 1.5"),
        ("step_size", math.nan, "step_size must be a positive finite number, got nan"),
        ("start_scale", -0.1, "start_scale must be a finite number of 0 or more, got -0.1"),
        ("dropout", "none", "dropout must be one of fresh, shared, off, got 'none'"),
    ],
)
def test_freelb_refuses_bad_values(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create("freelb", **{option: value})


def test_freelb_suggests_the_close_name_of_an_option() -> None:
    with pytest.raises(
        ValueError, match=r"no option 'ascent_step' \(did you mean 'ascent_steps'\?\)"
    ):
        create("freelb", ascent_step=3)
