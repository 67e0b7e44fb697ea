"""The mean prediction for each class."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import widen
from advreg.memory.memory import Memory, MemoryState


class ClassTargets(Memory):
    """For each class, the mean of the correct predictions in the last epoch, (C, C).

    Zero in the first epoch; uniform for a class without a correct prediction.
    """

    def __init__(self) -> None:
        # targets, (C, C); sums, (C, C), and counts, (C,), of this epoch's correct predictions
        self._kept: dict[str, Tensor] = {}
        self._epoch = 0

    def read(self, epoch: int, logits: Tensor) -> Tensor:
        """The targets in this epoch, (C, C), on the device of these logits, (N, C)."""
        classes = logits.shape[-1]
        if not self._kept:
            self._keep(widen(logits.new_zeros(classes, classes)))
        elif epoch != self._epoch:
            sums, counts = (self._kept[name].to(logits.device) for name in ("sums", "counts"))
            self._keep(
                torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], 1 / classes)
            )
        self._epoch = epoch
        return self._kept["targets"].to(logits.device)

    def write(self, logits: Tensor, labels: Tensor, mask: Tensor) -> None:
        """Add the correct ones among these predictions, (N, C), to the sums of this epoch."""
        probabilities = F.softmax(widen(logits), dim=-1)
        right = (mask & (logits.argmax(-1) == labels)).to(probabilities.dtype)
        for name, added in (("sums", right[:, None] * probabilities), ("counts", right)):
            self._kept[name] = self._kept[name].to(labels.device).index_add(0, labels, added)

    def _keep(self, targets: Tensor) -> None:
        """Set the targets, and start counting from zero."""
        self._kept = {
            "targets": targets,
            "sums": torch.zeros_like(targets),
            "counts": torch.zeros_like(targets[0]),
        }

    def state(self) -> MemoryState:
        return MemoryState(dict(self._kept), {"epoch": str(self._epoch)})

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        state = next(iter(states), MemoryState())
        self._kept, self._epoch = dict(state.tensors), int(state.facts.get("epoch", 0))

    @property
    def bytes(self) -> int:
        return sum(value.nbytes for value in self._kept.values())
