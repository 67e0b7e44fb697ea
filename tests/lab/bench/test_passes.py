from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from advreg.core.schedule import Clock
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.passes import MeteredTask, penalty_cost
from advreg.methods import ModelView, Step, create
from advreg.methods.base import Passes
from tiny_models import tiny, tiny_batch

# forward, backward, arithmetic: the table of costs, with 2/3 of a step for each ascent
COSTS: dict[str, tuple[dict[str, Any], tuple[float, float, float]]] = {
    "standard": ({}, (1, 1, 1)),
    "r3f": ({}, (2, 1, 2)),
    "rdrop": ({}, (2, 1, 2)),
    "simcut": ({}, (2, 1, 2)),
    "ols": ({}, (1, 1, 1)),
    "freelb": ({"ascent_steps": 3}, (4, 4, 4)),
    "freeat": ({"replays": 2}, (2, 2, 2)),
    "smart": ({"ascent_steps": 3}, (5, 4, 4)),
}
VARIANTS: list[tuple[str, dict[str, Any], tuple[float, float, float]]] = [
    *((name, options, cost) for name, (options, cost) in COSTS.items()),
    ("r3f", {"fuse": False}, (2, 1, 2)),
    ("smart", {"ascent_steps": 1}, (3, 2, 2 + 2 / 3)),
    ("smart", {"ascent_steps": 1, "proximal_weight": 1.0}, (4, 2, 3)),
    ("smart", {"ascent_steps": 1, "detach_clean": True}, (3, 2, 2 + 2 / 3)),
]


@pytest.mark.parametrize(("name", "options", "cost"), VARIANTS)
@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_arithmetic_of_a_step_is_that_of_the_table(
    family: str, name: str, options: dict[str, Any], cost: tuple[float, float, float]
) -> None:
    metered = MeteredTask(HFModelView(tiny(family)))
    method = create(name, **options)
    for step in range(2):
        backward = metered.counted(torch.Tensor.backward)
        method.step(
            cast(ModelView, metered),
            tiny_batch(family),
            Step(Clock(0, step), backward, lambda: None),
        )
    found = metered.cost(2)
    assert (found.forward, found.backward, found.arithmetic) == pytest.approx(cost)


def test_a_method_that_cannot_be_counted_is_reckoned_as_smart_is() -> None:
    expected = COSTS["smart"][1]
    found = penalty_cost(Passes(5, 4), ascent_steps=3)
    assert (found.forward, found.backward, found.arithmetic) == pytest.approx(expected)
