"""What memories of rows by sample have in common: storage, prefetch, checkpoints, resharding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from torch import Tensor

from advreg.core.shard import Shard
from advreg.memory.corpus import Corpus
from advreg.memory.memory import Memory, MemoryState, under
from advreg.memory.rows import SampleRows
from advreg.memory.tiers import Storage, disk_folder

R = TypeVar("R", bound=SampleRows)
T = TypeVar("T")
_ROWS = "cache."  # before the names of rows in a state


@dataclass
class RowMemory(Memory, Generic[R]):
    """Rows that stay with their sample. A sample stays with its process; when another number of
    processes saved, each process takes the rows of its samples.
    """

    storage: Storage = field(default_factory=Storage, kw_only=True)
    held: R | None = field(default=None, init=False, repr=False)
    """The rows; ``None`` until there are any."""
    _corpus: Corpus | None = field(default=None, init=False, repr=False)

    def validate(self, samples: int) -> None:
        disk_folder(self.storage.folder)  # refuses one that does not exist

    @property
    def prefetches(self) -> bool:
        return self.held is not None and not self.held.place.is_near

    def prefetch(self, ids: Tensor) -> None:
        if self.held is not None:
            self.held.prefetch(ids)

    @property
    def bytes(self) -> int:
        return 0 if self.held is None else self.held.nbytes

    # ---- checkpoints

    def state(self) -> MemoryState:
        corpus, held = self.corpus, self.held
        rows = {} if held is None else held.state_dict()
        facts = {
            "fingerprint": corpus.fingerprint,
            "checksum": corpus.checksum,
            "rank": str(corpus.shard.rank),
            "world": str(corpus.shard.world),
        }
        return MemoryState({f"{_ROWS}{name}": value for name, value in rows.items()}, facts)

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        remaining = iter(states)
        first = next(remaining, None)
        if first is None:
            self._begin(epoch)
            return
        mine, taken = self.corpus.shard, []
        for state in chain((first,), remaining):
            then = Shard(
                mine.size, int(state.facts.get("rank", 0)), int(state.facts.get("world", 1))
            )
            name = "fingerprint" if then == mine else "checksum"
            if state.facts.get(name) != getattr(self.corpus, name):
                raise ValueError(
                    f"the training data differs from the data of the checkpoint (its {name} "
                    "changed), so what is cached would be given to other samples; resume with the "
                    "same data, or start a new run"
                )
            if rows := under(_ROWS, state.tensors):
                taken.append(self._rows_for(rows).load_state_dict(rows, whole=then == mine))
            self._adopt(state, then)
            if then == mine:
                break
        needed = 0 if self.held is None else len(self.held.ids)
        if taken and sum(taken) < needed:
            raise ValueError(
                f"the saved caches hold {sum(taken)} of the {needed} samples of this process; "
                "resume with the same data and seed"
            )

    def _begin(self, epoch: float) -> None:
        """Begin with an empty memory in the middle of a run."""

    def _adopt(self, state: MemoryState, then: Shard) -> None:
        """Take over what a state has besides the rows; ``then`` is the shard that saved it."""

    def _rows_for(self, saved: Mapping[str, Tensor]) -> R:
        """The rows that take over these saved ones."""
        return prepared(self.held)

    @property
    def corpus(self) -> Corpus:
        """The data the memory was prepared with."""
        return prepared(self._corpus)


def prepared(value: T | None) -> T:
    """What :meth:`Memory.prepare` makes."""
    if value is None:
        raise RuntimeError(
            "the memory of the method is not prepared; call method.memory.prepare(corpus, seed, "
            "device) before the first step"
        )
    return value
