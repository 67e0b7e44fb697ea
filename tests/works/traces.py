"""What a training did, for comparison with the same training by the stock trainer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 1e-6
"""Of losses, gradient norms and logged figures relative to stock's, of weights relative to the
largest weight.
"""

_CLOCKS = ("_runtime", "_per_second", "_time")  # logged figures that differ from run to run


@dataclass
class Trace:
    """Five updates.

    Args:
        before, weights: at the beginning and at the end.
        lines: what each update logs: loss, gradient norm and whatever the trainer adds.
        evaluations: what each evaluation logs.
    """

    before: dict[str, Tensor]
    weights: dict[str, Tensor]
    lines: list[dict[str, Any]]
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, trainer: Any, before: dict[str, Tensor]) -> Trace:
        """What a Trainer did."""
        lines = [line for line in trainer.state.log_history if "loss" in line]
        evaluations = [line for line in trainer.state.log_history if "eval_loss" in line]
        return cls(before, weights_of(trainer.model), lines, evaluations)

    def logged(self, name: str) -> list[float]:
        return [float(line[name]) for line in self.lines]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights that are trained."""
    return {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def require_like(
    ours: Trace, stock: Trace, tolerance: float = TOLERANCE, ignoring: Collection[str] = ()
) -> None:
    """All that stock logs is there, with the same values, and the weights are the same, up to
    rounding.
    """
    assert len(ours.lines) == len(stock.lines) > 0
    for mine, theirs in _pairs(ours, stock):
        missing = sorted(set(theirs) - set(mine))
        assert not missing, f"not logged: {missing}"
        for name in set(_figures(theirs)) - set(ignoring):
            same = math.isclose(
                mine[name], theirs[name], rel_tol=tolerance, abs_tol=tolerance * _scale(name)
            )
            assert same, f"{name} is {mine[name]!r}, stock has {theirs[name]!r}"
    _require_moved(stock)
    assert set(ours.weights) == set(stock.weights)
    for name, value in stock.weights.items():
        gap = float((ours.weights[name] - value).abs().max())
        assert gap <= tolerance * max(1.0, float(value.abs().max())), f"{name} is {gap:.1e} away"


def require_identical(ours: Trace, stock: Trace) -> None:
    """Everything that stock logs, and the weights, to the bit; and nothing is logged that stock
    does not log.
    """
    assert len(ours.lines) == len(stock.lines) > 0
    for mine, theirs in _pairs(ours, stock):
        assert set(mine) == set(theirs)
        assert {name: mine[name] for name in _figures(theirs)} == {
            name: theirs[name] for name in _figures(theirs)
        }
    _require_moved(stock)
    assert set(ours.weights) == set(stock.weights)
    different = [
        name for name, value in stock.weights.items() if not torch.equal(ours.weights[name], value)
    ]
    assert not different, f"other weights: {different}"


def _require_moved(trace: Trace, least: float = 1e-3) -> None:
    """The training did something, or a comparison of its ends would prove nothing."""
    moved = max(
        float((value - trace.before[name]).abs().max()) for name, value in trace.weights.items()
    )
    assert moved > least, f"no weight moved by more than {moved:.1e}"


def _pairs(ours: Trace, stock: Trace) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
    assert len(ours.evaluations) == len(stock.evaluations)
    return [
        *zip(ours.lines, stock.lines, strict=True),
        *zip(ours.evaluations, stock.evaluations, strict=True),
    ]


def _figures(line: Mapping[str, Any]) -> list[str]:
    return [name for name in line if not name.endswith(_CLOCKS)]


def _scale(name: str) -> float:
    """Accuracies and the like may be zero; a loss and a norm may not."""
    return 0.0 if name in ("loss", "grad_norm") else 1.0
