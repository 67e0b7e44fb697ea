"""What a method remembers between steps and saves in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from advreg.core.progress import Progress
from advreg.memory.corpus import Corpus
from advreg.records.diagnostics import MemoryHealth

T = TypeVar("T")


@dataclass(frozen=True)
class MemoryState:
    """The content of a memory: tensors, and facts (text) that must agree when it is loaded
    again.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Memory(ABC):
    """What a method remembers. Each kind of memory defines how it is read and written."""

    def validate(self, samples: int) -> None:  # noqa: B027 - optional
        """Refuse settings that do not fit this number of samples or this machine.

        Raises:
            ValueError: with the option, its value and a remedy.
        """

    def prepare(  # noqa: B027 - optional
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        """Read what it needs of the training set, once, before the first step."""

    @property
    def prefetches(self) -> bool:
        """Whether :meth:`prefetch` has an effect."""
        return False

    def prefetch(self, ids: Tensor) -> None:  # noqa: B027 - optional
        """Start to copy the rows of these samples to the device, for one of the next steps."""

    @abstractmethod
    def state(self) -> MemoryState:
        """What must be in a checkpoint for the next step to be exactly the same."""

    @abstractmethod
    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        """Restore a saved state; refuse one that does not belong to this run.

        Args:
            states: this process's state, or, if another number of processes saved, the states of
                all of them; none: begin with an empty memory.
            epoch: where a run with an empty memory stands; 7.5 is the middle of the eighth epoch.
        """

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes in use."""

    def diagnostics(self) -> MemoryHealth | None:
        """Statistics of the content, for the report of a run that has ended."""
        return None


class Memories(Memory):
    """What several methods remember, each under its name.

    Args:
        parts: the memories by the names of their methods.
    """

    def __init__(self, parts: Mapping[str, Memory]) -> None:
        self.parts = dict(parts)

    def validate(self, samples: int) -> None:
        for name, part in self.parts.items():
            with named(name):
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


@contextmanager
def named(part: str) -> Iterator[None]:
    """Put the name of a part in front of the option that an error names."""
    try:
        yield
    except ValueError as error:
        raise type(error)(f"{part}.{error}") from error


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """The entries whose name starts with the prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }
