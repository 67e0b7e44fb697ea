"""What a method remembers between steps, and takes along into a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advreg.core.progress import Progress
from advreg.memory.corpus import Corpus
from advreg.records.diagnostics import MemoryHealth


@dataclass(frozen=True)
class MemoryState:
    """The content of a memory: tensors, and facts (text) that must agree when it is loaded
    again.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Memory(ABC):
    """What a method remembers. How it is read and written is up to each kind of memory."""

    def validate(self, samples: int) -> None:  # noqa: B027 - optional
        """Refuse settings that do not fit this number of samples or this machine.

        Raises:
            ValueError: with the option, its value and a remedy.
        """

    def prepare(  # noqa: B027 - optional
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        """Look at the training set once, before the first step."""

    @property
    def prefetches(self) -> bool:
        """Whether :meth:`prefetch` has an effect."""
        return False

    def prefetch(self, ids: Tensor) -> None:  # noqa: B027 - optional
        """Start to bring the rows of these samples, which come in one of the next steps, to the
        device.
        """

    @abstractmethod
    def state(self) -> MemoryState:
        """What must be in a checkpoint for the next step to be exactly the same."""

    @abstractmethod
    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        """Take over what was saved; refuse a state that does not belong to this run.

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
