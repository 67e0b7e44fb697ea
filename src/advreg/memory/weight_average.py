"""A moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from advreg.core.checks import check_share
from advreg.memory.memory import Memory, MemoryState


class WeightAverage(Memory):
    """θ̃ ← β θ̃ + (1 − β) θ after each update, from the weights at the first :meth:`read`.

    Args:
        momentum: β.
    """

    def __init__(self, momentum: float) -> None:
        check_share("proximal_momentum", momentum)
        self.momentum = momentum
        self._average: dict[str, Tensor] = {}

    def read(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The average of these weights."""
        if not self._average:
            self._average = {name: value.detach().clone() for name, value in weights.items()}
        self._average = {  # on the host after a load
            name: value.to(weights[name].device) for name, value in self._average.items()
        }
        return self._average

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Follow the weights, which were updated."""
        for name, value in weights.items() if self._average else ():
            self._average[name].lerp_(value, 1 - self.momentum)

    def state(self) -> MemoryState:
        return MemoryState(dict(self._average))

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        self._average = dict(next(iter(states), MemoryState()).tensors)

    @property
    def bytes(self) -> int:
        return sum(value.nbytes for value in self._average.values())
