"""Counts of passes, seconds and updates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class PassCount:
    """Passes over one batch: a fused pass over the doubled batch counts as two forwards; gradients
    with respect to δ alone count as backwards too."""

    forward: float = 0.0
    backward: float = 0.0
    steps: int = 0

    def end_step(self) -> None:
        """Count the last backward pass of a step, and the step."""
        self.backward += 1
        self.steps += 1

    def per_step(self) -> dict[str, float]:
        steps = max(self.steps, 1)
        return {"forward": self.forward / steps, "backward": self.backward / steps}


class Timer:
    """Seconds spent in optimizer steps, without evaluation and saving.

    The steps of one epoch cost the same (all refresh a cache, or none does), so an epoch takes the
    median of its steps times their number: a machine that is busy for a while has no effect. The
    timer does not wait for the GPU: each update waits for the check of the one before, so the host
    is at most one update ahead.

    Args:
        epochs: seconds of each epoch of a resumed run so far; the last epoch may be partial.
        updates: updates in these epochs.
    """

    def __init__(self, epochs: Sequence[float] = (), updates: int = 0) -> None:
        self._past, self._updates = list(epochs), updates
        self._number = max(0, len(epochs) - 1)
        self._epoch: list[float] = []

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._epoch.append(time.perf_counter() - self._started)

    def turn(self, epoch: int) -> None:
        """Begin this epoch, or resume it."""
        self._past, self._updates, self._epoch = self.epochs, self.updates, []
        self._number = epoch

    @property
    def epochs(self) -> list[float]:
        """Seconds of each epoch."""
        if not self._epoch:
            return list(self._past)
        missing = [0.0] * (self._number + 1 - len(self._past))
        spent = [*self._past, *missing]
        spent[self._number] += statistics.median(self._epoch) * len(self._epoch)
        return spent

    @property
    def seconds(self) -> float:
        return sum(self.epochs)

    @property
    def updates(self) -> int:
        return self._updates + len(self._epoch)

    def per_step(self) -> float:
        return self.seconds / max(self.updates, 1)


@dataclass
class Tally:
    """What a run counts. Checkpoints save it, and a resumed run continues it.

    Args:
        passes: passes over the model.
        timer: seconds spent in updates.
        skipped: updates left out because they were not finite.
        planned: updates of the run as planned when it began.
    """

    passes: PassCount = field(default_factory=PassCount)
    timer: Timer = field(default_factory=Timer)
    skipped: int = 0
    planned: int | None = None

    def state(self) -> dict[str, object]:
        """The numbers to save."""
        times = {"epoch_seconds": self.timer.epochs, "updates": self.timer.updates}
        return asdict(self.passes) | times | {"skipped": self.skipped, "planned": self.planned}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Tally:
        """A tally from what :meth:`state` gave; numbers that were not saved are zero."""
        passes = PassCount(
            state.get("forward", 0), state.get("backward", 0), int(state.get("steps", 0))
        )
        timer = Timer(state.get("epoch_seconds", []), int(state.get("updates", 0)))
        return cls(passes, timer, int(state.get("skipped", 0)), state.get("planned"))
