"""The memory of ARCH: cached perturbations, the epochs that refresh them, and borrowed ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.checks import check_choice, check_share
from advreg.core.perturbation import Perturbation
from advreg.core.progress import Progress, counting
from advreg.core.schedule import Clock, Onset, RefreshEvery
from advreg.core.shard import Shard
from advreg.memory.cache import PerturbationCache, cache_bytes
from advreg.memory.codec import CacheDtype
from advreg.memory.corpus import Corpus
from advreg.memory.diagnostics import memory_health, similarity_histograms
from advreg.memory.memory import Memory, MemoryState
from advreg.memory.neighbours import Borrowing, NeighbourIndex
from advreg.memory.reshard import joined, part_of, under
from advreg.memory.shared_means import SharedMeans, assembled
from advreg.memory.tiers import Storage
from advreg.records.diagnostics import Histogram, MemoryHealth

_ROUNDING = 1e-6  # of an epoch that is given as a number of steps over their number in an epoch


@dataclass
class PerturbationMemory(Memory):
    """Perturbations δ_i of a share of the samples; every other sample borrows its neighbours'.

    Args:
        fraction: p, share of the samples that are cached.
        ema: α, weight of the old perturbation when a new one is written.
        ball: where each δ lies.
        refreshes: T_c, epochs between two refreshes; ``None``: one refresh.
        onset: when the memory begins.
        borrowing: how neighbours are chosen.
        storage: where rows live.
        dtype: how rows are stored.
    """

    fraction: float
    ema: float
    ball: Ball
    refreshes: int | None
    onset: Onset
    borrowing: Borrowing = field(default_factory=Borrowing)
    storage: Storage = field(default_factory=Storage)
    dtype: CacheDtype = "float32"
    _cache: PerturbationCache | None = field(default=None, init=False, repr=False)
    _neighbours: NeighbourIndex | None = field(default=None, init=False, repr=False)
    _similarity: list[Histogram] = field(default_factory=list, init=False, repr=False)
    _shared: SharedMeans | None = field(default=None, init=False, repr=False)  # several processes
    _shared_at: int = field(default=-1, init=False, repr=False)  # refresh whose means they are
    _facts: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _begun: int | None = field(default=None, init=False, repr=False)  # first epoch it sees whole
    _epoch: int = field(default=-1, init=False, repr=False)  # of the last step

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"cache_fraction must be above 0 and at most 1, got {self.fraction}")
        check_share("ema", self.ema)
        check_choice("cache_dtype", self.dtype, get_args(CacheDtype))
        _ = self.schedule  # refuses bad values before training

    # ---- before training

    def validate(self, samples: int) -> None:
        cached = self._cached_of(samples)
        if cached < samples:
            self.borrowing.validate(cached)
        self.storage.validate()

    def prepare(
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        """Draw the cache set X of ⌊n·p⌋ samples and find every other sample's neighbours in it
        (algorithm 2).
        """
        shard = corpus.shard
        count = self._cached_of(shard.size)
        generator = torch.Generator().manual_seed(seed)
        cached = torch.randperm(shard.size, generator=generator)[:count].sort().values
        mine = cached[shard.owns(cached)]
        rows = shard.rows(mine)
        tokens = {stream: int(lengths[rows].sum()) for stream, lengths in corpus.lengths.items()}
        needed = cache_bytes(tokens, len(rows), corpus.widths, self.dtype)
        place = self.storage.place(needed, device)
        self._cache = PerturbationCache(
            mine, shard, corpus.lengths, corpus.widths, self.dtype, place
        )
        self._facts = {"fingerprint": corpus.fingerprint, "checksum": corpus.checksum}
        self._shared_at = self._epoch = -1
        self._begun = None
        self._neighbours, self._shared, self._similarity = None, None, []
        if count < shard.size:
            self._find_neighbours(corpus, rows, cached, generator, device, progress)

    def _find_neighbours(
        self,
        corpus: Corpus,
        rows: Tensor,
        cached: Tensor,
        generator: torch.Generator,
        device: torch.device,
        progress: Progress | None,
    ) -> None:
        shard, anchors = corpus.shard, None
        if shard.world > 1 and self.borrowing.scope == "all":
            self._shared = SharedMeans(self.cache, cached)
            anchors = {  # the vectors of the whole cache set; each process has its own samples'
                stream: assembled(
                    vector[rows.to(vector.device)].to(device), cached.to(device), shard.world
                )
                for stream, vector in corpus.vectors.items()
            }
        neighbours = NeighbourIndex.build(
            corpus.vectors,
            rows,
            self.borrowing.count,
            self.borrowing.choice,
            generator,
            device=device,
            search=self.borrowing.search,
            advance=counting(
                progress, "finding neighbours", (len(corpus) - len(rows)) * len(corpus.vectors)
            ),
            anchors=anchors,
            shard=shard,
        )
        self._similarity = similarity_histograms(corpus.vectors, rows, neighbours, anchors)
        self._neighbours = neighbours.to(device)

    def _cached_of(self, samples: int) -> int:
        """⌊n·p⌋."""
        count = int(samples * self.fraction + 1e-9)  # 100 · 0.29 is 28.999… in floating point
        if count == 0:
            raise ValueError(
                f"cache_fraction {self.fraction} of {samples} samples caches none; make it "
                f"{1.05 / samples:.2g} or more"
            )
        return count

    # ---- in training

    @property
    def cache(self) -> PerturbationCache:
        if self._cache is None:
            raise RuntimeError(
                "the memory of arch is not prepared; call method.memory.prepare(corpus, seed, "
                "device) before the first step"
            )
        return self._cache

    @property
    def schedule(self) -> RefreshEvery:
        return RefreshEvery(self.refreshes, self._begun or 0)

    def has_begun(self, clock: Clock) -> bool:
        """Whether the memory has begun: with the first epoch whose first step comes after
        ``start_at``.
        """
        if self._begun is None and clock.epoch != self._epoch and self.onset.begun(clock):
            self._begun = clock.epoch
        self._epoch = clock.epoch
        return self._begun is not None

    @property
    def prefetches(self) -> bool:
        return self._cache is not None and not self._cache.place.is_near

    def prefetch(self, ids: Tensor) -> None:
        if self._cache is not None:
            self._cache.prefetch(ids)

    def read(self, ids: Tensor, zeros: Perturbation, epoch: int) -> Perturbation:
        """δ_i^{t−1} from the cache, or for an uncached sample the mean of its neighbours'
        (construct-adv equation).

        With several processes the first call after a refresh exchanges their means; all processes
        must make it.
        """
        slots = self.cache.find(ids, zeros, at_once=False)
        delta = self.cache.read(ids, zeros, slots)
        if self._neighbours is not None:
            lender = self._means_of(epoch) or self.cache
            rows = self.cache.shard.rows(ids)
            delta = delta.where(slots >= 0, self._neighbours.borrow(rows, lender, zeros))
        return self.ball.project(delta)

    def write(self, ids: Tensor, found: Perturbation, epoch: int) -> Perturbation:
        """Blend newly found Δ_i into the cache; returns the δ_i to train on."""
        return self.cache.write(ids, found, self.ema, self.ball, epoch)

    def _means_of(self, epoch: int) -> SharedMeans | None:
        """The means of all processes, as the last refresh left them."""
        renewed_at = self.schedule.last(epoch)
        if self._shared is not None and self._shared_at != renewed_at:
            self._shared.gather()
            self._shared_at = renewed_at
        return self._shared

    # ---- checkpoints

    def state(self) -> MemoryState:
        self.cache.settle()
        shard = self.cache.shard
        tensors = {f"cache.{name}": value for name, value in self.cache.state_dict().items()}
        if self._neighbours is not None:
            tensors |= {
                f"neighbours.{stream}": slots for stream, slots in self._neighbours.slots.items()
            }
        facts = self._facts | {"rank": str(shard.rank), "world": str(shard.world)}
        if self._begun != 0:
            begun = "" if self._begun is None else str(self._begun)
            facts |= {"begun": begun, "epoch": str(self._epoch)}
        return MemoryState(tensors, facts)

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        """Take over a state, or begin empty: refresh what is left of this epoch and the whole next
        one.
        """
        remaining = iter(states)
        first = next(remaining, None)
        if first is None:
            next_epoch = math.ceil(epoch - _ROUNDING)
            if self.onset.start_at > 0:
                self._epoch = next_epoch - 1  # an epoch that is under way does not count
            else:
                self._begun = next_epoch
            return
        shard = self.cache.shard
        if _shard_of(first, shard.size) == shard:
            self._require_same_data("fingerprint", first)
        else:
            first = self._resharded((first, *remaining))
        self.cache.load_state_dict(under("cache.", first.tensors))
        if self._neighbours is not None:
            for stream, slots in under("neighbours.", first.tensors).items():
                self._neighbours.slots[stream].copy_(slots)
        begun = first.facts.get("begun", "0")
        self._begun = int(begun) if begun else None
        self._shared_at = -1
        self._epoch = int(first.facts.get("epoch", -1))

    def _resharded(self, states: Iterable[MemoryState]) -> MemoryState:
        """This process's state from the states of another number of processes.

        Each sample's perturbation and neighbours go to the process to which the sample belongs now.
        With ``neighbour_scope="shard"`` neighbours are those found in the new shards: other shards,
        other neighbours.
        """
        shard = self.cache.shard
        mine = torch.tensor(shard.ids, dtype=torch.int64)
        parts, facts = [], dict[str, str]()
        tensors = {
            name: value.cpu().clone()
            for name, value in self.state().tensors.items()
            if "neighbours." in name
        }
        for state in states:
            self._require_same_data("checksum", state)
            parts.append(part_of(under("cache.", state.tensors), shard))
            facts = dict(state.facts)
            then = _shard_of(state, shard.size)
            here = then.owns(mine)
            for name in tensors if self.borrowing.scope == "all" else ():
                tensors[name][here] = state.tensors[name][then.rows(mine[here])]
        return MemoryState(
            {**tensors, **{f"cache.{name}": value for name, value in joined(parts).items()}}, facts
        )

    def _require_same_data(self, name: str, state: MemoryState) -> None:
        if state.facts.get(name) != self._facts[name]:
            raise ValueError(
                f"the training data differs from the data of the checkpoint (its {name} changed), "
                "so cached perturbations would be given to other sentences; resume with the same "
                "data, or start a new run"
            )

    # ---- what it takes and how it does

    @property
    def bytes(self) -> int:
        return sum(held.nbytes for held in (self._cache, self._shared) if held is not None)

    def diagnostics(self) -> MemoryHealth | None:
        return (
            None if self._cache is None else memory_health(self._cache, self.ball, self._similarity)
        )


def _shard_of(state: MemoryState, size: int) -> Shard:
    """The samples of the process that saved a state."""
    return Shard(size, int(state.facts.get("rank", 0)), int(state.facts.get("world", 1)))
