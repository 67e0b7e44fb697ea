"""Running averages: of the weights, and of the predictions for each class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import widen
from advreg.memory.memory import Memory, MemoryState


class Averages(Memory):
    """A memory of a few tensors."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def state(self) -> MemoryState:
        return MemoryState(dict(self._kept))

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        self._kept = dict(next(iter(states), MemoryState()).tensors)

    @property
    def bytes(self) -> int:
        return sum(value.nbytes for value in self._kept.values())


class WeightAverage(Averages):
    """θ̃ ← β θ̃ + (1 − β) θ after each update, from the weights at the first :meth:`read`.

    Args:
        momentum: β.
    """

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum

    def read(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The average of these weights."""
        start = self._kept or {name: value.detach().clone() for name, value in weights.items()}
        self._kept = {  # on the host after a load
            name: value.to(weights[name].device) for name, value in start.items()
        }
        return self._kept

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Follow the updated weights."""
        for name, value in self._kept.items():
            value.lerp_(weights[name], 1 - self.momentum)


class ClassTargets(Averages):
    """For each class, the mean of the correct predictions in the last epoch, (C, C).

    Zero in the first epoch; uniform for a class without a correct prediction.
    """

    def __init__(self) -> None:
        # targets, (C, C); sums, (C, C), and counts, (C,), of this epoch's correct predictions
        super().__init__()
        self._epoch = 0

    def read(self, epoch: int, logits: Tensor) -> Tensor:
        """The targets in this epoch, (C, C), on the device of these logits, (N, C)."""
        classes = logits.shape[-1]
        kept = {name: value.to(logits.device) for name, value in self._kept.items()}
        if not kept or epoch != self._epoch:
            targets = widen(logits.new_zeros(classes, classes))
            if kept:
                sums, counts = kept["sums"], kept["counts"][:, None]
                targets = torch.where(counts > 0, sums / counts.clamp_min(1), 1 / classes)
            zeros = torch.zeros_like(targets)
            kept = {"targets": targets, "sums": zeros, "counts": zeros[0].clone()}
        self._kept, self._epoch = kept, epoch
        return kept["targets"]

    def write(self, logits: Tensor, labels: Tensor, mask: Tensor) -> None:
        """Add the correct ones among these predictions, (N, C), to the sums of this epoch."""
        probabilities = F.softmax(widen(logits), dim=-1)
        right = (mask & (logits.argmax(-1) == labels)).to(probabilities.dtype)
        for name, added in (("sums", right[:, None] * probabilities), ("counts", right)):
            self._kept[name] = self._kept[name].index_add(0, labels, added)

    def state(self) -> MemoryState:
        return replace(super().state(), facts={"epoch": str(self._epoch)})

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        state = next(iter(states), MemoryState())
        super().load([state])
        self._epoch = int(state.facts.get("epoch", 0))
