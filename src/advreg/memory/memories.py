"""Several memories as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from advreg.core.progress import Progress
from advreg.memory.corpus import Corpus
from advreg.memory.memory import Memory, MemoryState
from advreg.memory.reshard import under
from advreg.records.diagnostics import MemoryHealth


class Memories(Memory):
    """What several methods remember, each under its name.

    Args:
        parts: the memories by the names of their methods.
    """

    def __init__(self, parts: Mapping[str, Memory]) -> None:
        self.parts = dict(parts)

    def validate(self, samples: int) -> None:
        for part in self.parts.values():
            part.validate(samples)

    def prepare(
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        for part in self.parts.values():
            part.prepare(corpus, seed, device, progress)

    @property
    def prefetches(self) -> bool:
        return any(part.prefetches for part in self.parts.values())

    def prefetch(self, ids: Tensor) -> None:
        for part in self.parts.values():
            part.prefetch(ids)

    def state(self) -> MemoryState:
        tensors: dict[str, Tensor] = {}
        facts: dict[str, str] = {}
        for name, part in self.parts.items():
            state = part.state()
            tensors |= {f"{name}.{key}": value for key, value in state.tensors.items()}
            facts |= {f"{name}.{key}": value for key, value in state.facts.items()}
        return MemoryState(tensors, facts)

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        saved = list(states)
        for name, part in self.parts.items():
            own = (
                MemoryState(under(f"{name}.", state.tensors), under(f"{name}.", state.facts))
                for state in saved
            )
            part.load(own, epoch)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())

    def diagnostics(self) -> MemoryHealth | None:
        found = (part.diagnostics() for part in self.parts.values())
        return next((one for one in found if one is not None), None)
