"""The inner maximisation: projected gradient ascent on δ, which leaves the parameters alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.checks import check_choice, check_positive, check_whole
from advreg.core.perturbation import Perturbation

StepRule = Literal["normalised", "gradient", "sign"]
EndRule = Literal["project", "rescale"]
Gradient = Callable[[Tensor, Perturbation], Perturbation]

INERT_STEP = 1e-3
"""Plain-gradient steps up to this size hardly turned δ from its random start when measured
(docs/methods/arch.md).
"""


@dataclass(frozen=True)
class Ascent:
    """δ ← Π(δ + η · direction(∇_δ objective)), S times.

    Args:
        steps: S.
        step_size: η.
        rule: ``"normalised"`` g/‖g‖ in the ball's norm and scope, ``"gradient"`` g unchanged,
            ``"sign"`` sign(g).
        end: ``"project"`` into the ball after each step, or ``"rescale"`` onto its surface.
    """

    steps: int
    step_size: float
    rule: StepRule = "normalised"
    end: EndRule = "project"

    def __post_init__(self) -> None:
        check_whole("ascent_steps", self.steps, least=0)
        check_positive("step_size", self.step_size)
        check_choice("step_rule", self.rule, get_args(StepRule))
        check_choice("step_end", self.end, get_args(EndRule))

    def warnings(self) -> tuple[str, ...]:
        """A warning of steps that do not climb."""
        if self.rule != "gradient" or self.steps == 0 or self.step_size > INERT_STEP:
            return ()
        return (
            "the ascent is nearly inert with step_rule='gradient' and "
            f"step_size={self.step_size:g}: the gradient near "
            "δ = 0 is so small that δ hardly turns from its random start; use "
            "step_rule='normalised'",
        )

    def move(self, delta: Perturbation, gradient: Perturbation, ball: Ball) -> Perturbation:
        """One step along the gradient, and back into the ball."""
        moved = delta.detach().plus(self.direction(gradient, ball), self.step_size)
        return ball.rescale(moved) if self.end == "rescale" else ball.project(moved)

    def direction(self, gradient: Perturbation, ball: Ball) -> Perturbation:
        """The gradient as the step rule takes it; one that is not finite raises on a CPU, and
        becomes NaN on a GPU.
        """
        gradient = gradient.map(lambda values, _: values)  # blanks what a model reads of padding
        if gradient.device.type == "cpu":
            require_finite(gradient)
        if self.rule == "normalised":
            along = ball.unit(gradient)
        else:
            along = gradient if self.rule == "gradient" else gradient.map(lambda g, _: g.sign())
        # 0 · ∞ is NaN, which no sign and no clipping hides
        return along if gradient.device.type == "cpu" else along.plus(gradient, 0.0)


def require_finite(gradient: Perturbation) -> None:
    """Raise for entries that are not finite: they would spread into δ.

    Not for use on a GPU, where the host would have to wait at every step of the ascent. There δ,
    the prediction and so the loss become NaN, which the trainers refuse, naming the step; and the
    cache refuses such a δ.
    """
    for stream, values in gradient.values.items():
        if not bool(torch.isfinite(values).all()):
            raise FloatingPointError(
                f"the gradient with respect to the perturbation of stream '{stream}' is not "
                "finite; "
                "lower step_size or radius, or train in bf16 or fp32 instead of fp16"
            )


def input_gradient(
    objective: Tensor, delta: Perturbation, retain_graph: bool = False
) -> Perturbation:
    """∇_δ objective, by ``torch.autograd.grad``: no parameter's ``.grad`` is computed or
    touched.
    """
    gradients = torch.autograd.grad(
        objective, list(delta.values.values()), retain_graph=retain_graph
    )
    return Perturbation(dict(zip(delta.streams, gradients, strict=True)), delta.masks)


def ascend(
    objective: Callable[[Perturbation], Tensor],
    start: Perturbation,
    ascent: Ascent,
    ball: Ball,
    gradient: Gradient = input_gradient,
) -> Perturbation:
    """Climb ``objective`` from ``start`` without leaving the ball.

    Args:
        objective: a scalar that is a *sum* over samples, so that one sample's path does not depend
            on the others.
        start: δ_0, inside the ball.
        ascent: number, size and rule of the steps.
        ball: where δ must stay.
        gradient: how to differentiate; a mixed-precision task scales the objective here.

    Example:
        >>> mask = torch.ones(1, 1, dtype=torch.bool)
        >>> start = Perturbation({"tokens": torch.tensor([[[0.1, 0.0]]])}, {"tokens": mask})
        >>> climb = lambda delta: delta.values["tokens"].sum()
        >>> top = ascend(climb, start, Ascent(steps=5, step_size=1.0), Ball(radius=1.0))
        >>> top.values["tokens"].norm().item()
        1.0
    """
    delta = start.detach()
    for _ in range(ascent.steps):
        point = delta.leaf()
        delta = ascent.move(point, gradient(objective(point), point), ball)
    return delta
