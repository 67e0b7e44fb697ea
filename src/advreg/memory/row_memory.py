"""What memories of rows by sample have in common: storage, prefetch, checkpoints, resharding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from advreg.core.shard import Shard
from advreg.memory.corpus import Corpus
from advreg.memory.memory import Memory, MemoryState
from advreg.memory.reshard import joined, part_of, under
from advreg.memory.rows import SampleRows
from advreg.memory.tiers import Storage

_ROWS = "cache."  # before the names of rows in a state


@dataclass
class RowMemory(Memory):
    """Rows that stay with their sample. A sample stays with its process; when another number of
    processes saved, each process takes the rows of its samples.
    """

    storage: Storage = field(default_factory=Storage, kw_only=True)
    _corpus: Corpus | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def held(self) -> SampleRows | None:
        """The rows; ``None`` until there are any."""

    def validate(self, samples: int) -> None:
        self.storage.validate()

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
        mine, parts = self.corpus.shard, []
        for state in chain((first,), remaining):
            then = Shard(
                mine.size, int(state.facts.get("rank", 0)), int(state.facts.get("world", 1))
            )
            self._require_same_data("fingerprint" if then == mine else "checksum", state)
            rows = under(_ROWS, state.tensors)
            if rows:
                parts.append(rows if then == mine else part_of(rows, mine))
            self._adopt(state, then)
            if then == mine:
                break
        if parts:
            self._take(parts[0] if len(parts) == 1 else joined(parts))

    def _begin(self, epoch: float) -> None:
        """Start empty where a run stands."""

    def _adopt(self, state: MemoryState, then: Shard) -> None:
        """Take over what a state has besides the rows; ``then`` is the shard that saved it."""

    @abstractmethod
    def _take(self, rows: Mapping[str, Tensor]) -> None:
        """Take over saved rows of this process's samples."""

    @property
    def corpus(self) -> Corpus:
        """The data the memory was prepared with."""
        if self._corpus is None:
            raise RuntimeError(
                "the memory of the method is not prepared; call method.memory.prepare(corpus, "
                "seed, device) before the first step"
            )
        return self._corpus

    def _require_same_data(self, name: str, state: MemoryState) -> None:
        if state.facts.get(name) != getattr(self.corpus, name):
            raise ValueError(
                f"the training data differs from the data of the checkpoint (its {name} changed), "
                "so what is cached would be given to other samples; resume with the same data, or "
                "start a new run"
            )
