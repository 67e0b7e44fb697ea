"""Each cell of the table "Works with": a method trains as the stock trainer does, or refuses before
the first step.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from advreg.methods import registry
from works.all_cases import CASES
from works.cases import WITHOUT_DELTA, ByTrainer, Case, Setting, create, outcome, without_delta
from works.traces import Trace, require_identical

# TRL warns of it on behalf of whoever calls it
pytestmark = pytest.mark.filterwarnings(
    "ignore:`label_smoothing_factor` is deprecated:FutureWarning"
)

FAST = ("standard", "r3f", "arch", "freelb")  # one method of each kind

stock: dict[str, Trace] = {}


def cells(methods: Iterable[str]) -> list[Any]:
    """Every case with every method; those that are not fast are marked."""
    return [
        pytest.param(
            case,
            method,
            marks=() if case.is_fast and method in FAST else pytest.mark.slow,
            id=f"{case.name}: {method}",
        )
        for case in CASES
        for method in methods
    ]


@pytest.mark.parametrize(("case", "method"), cells(registry))
def test_a_method_without_effect_trains_as_stock_does_or_refuses(
    case: Case, method: str, tmp_path: Path
) -> None:
    assert outcome(case, method, tmp_path, stock) == case.refusal(method)


@pytest.mark.parametrize(
    ("case", "method"),
    [cell for cell in cells(WITHOUT_DELTA) if not cell.values[0].refusal(cell.values[1])],
)
def test_without_a_perturbation_there_is_no_penalty(
    case: Case, method: str, tmp_path: Path
) -> None:
    """In two passes with the same dropout masks, and in the fused pass without dropout."""
    for dropout, rate in (("shared", 0.1), ("fresh", 0.0)):
        trace = case.train(without_delta(method, dropout), Setting(tmp_path / dropout, rate))
        assert max(map(abs, trace.logged("penalty"))) < 1e-9


ways = {
    "": {},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 2},
}


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize(
    ("case", "method"),
    [cell for cell in cells(["standard"]) if isinstance(cell.values[0].train, ByTrainer)],
)
def test_standard_is_the_stock_trainer_to_the_bit(
    case: Case, method: str, way: str, tmp_path: Path
) -> None:
    """With dropout and shuffled batches."""
    fields = {**ways[way], "train_sampling_strategy": "random"}
    found = [
        case.train(create(method) if method else None, Setting(tmp_path / method, 0.1, fields))
        for method in (method, "")
    ]
    require_identical(*found)
