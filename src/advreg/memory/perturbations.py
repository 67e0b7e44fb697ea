"""The memory of ARCH: cached perturbations, the epochs that refresh them, and borrowed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation
from advreg.core.progress import Progress, counting
from advreg.core.schedule import Clock, Onset, RefreshEvery
from advreg.core.shard import Shard
from advreg.memory.cache import CacheDtype, PerturbationCache, cache_bytes
from advreg.memory.corpus import Corpus
from advreg.memory.diagnostics import memory_health, similarity_histograms
from advreg.memory.exchange import SharedMeans, assembled
from advreg.memory.memory import MemoryState
from advreg.memory.neighbours import Borrowing, NeighbourIndex, check_neighbours
from advreg.memory.row_memory import RowMemory, prepared
from advreg.records.diagnostics import Histogram, MemoryHealth

_ROUNDING = 1e-6  # of an epoch that is given as a number of steps over their number in an epoch


@dataclass
class PerturbationMemory(RowMemory[PerturbationCache]):
    """Perturbations δ_i of a share of the samples; every other sample borrows its neighbours'.

    Args:
        fraction: p, share of the samples that are cached.
        ema: α, weight of the old perturbation when a new one is written.
        ball: where each δ lies.
        refreshes: T_c, epochs between two refreshes; ``None``: one refresh.
        onset: when the memory begins.
        borrowing: how neighbours are chosen.
        dtype: of the rows.
        storage: where rows live.
    """

    fraction: float
    ema: float
    ball: Ball
    refreshes: int | None
    onset: Onset
    borrowing: Borrowing = field(default_factory=Borrowing)
    dtype: CacheDtype = "float32"
    _neighbours: NeighbourIndex | None = field(default=None, init=False, repr=False)
    _similarity: list[Histogram] = field(default_factory=list, init=False, repr=False)
    _shared: SharedMeans | None = field(default=None, init=False, repr=False)  # several processes
    _shared_at: int = field(default=-1, init=False, repr=False)  # the refresh they are from
    _begun: int | None = field(default=None, init=False, repr=False)  # first epoch it sees whole
    _epoch: int = field(default=-1, init=False, repr=False)  # of the last step

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"cache_fraction must be above 0 and at most 1, got {self.fraction}")
        _ = self.schedule  # refuses bad values before training

    # ---- before training

    def validate(self, samples: int) -> None:
        cached = self._cached_of(samples)
        if cached < samples:
            check_neighbours(self.borrowing.count, cached)
        super().validate(samples)

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
        self.held = PerturbationCache(mine, shard, corpus.lengths, corpus.widths, self.dtype, place)
        self._corpus = replace(corpus, vectors={})  # they are large
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
        """The cached perturbations."""
        return prepared(self.held)

    @property
    def schedule(self) -> RefreshEvery:
        return RefreshEvery(self.refreshes, self._begun or 0)

    def has_begun(self, clock: Clock) -> bool:
        """Whether the memory is in use: from the first epoch whose first step comes after
        ``start_at``.
        """
        if self._begun is None and clock.epoch != self._epoch and self.onset.begun(clock):
            self._begun = clock.epoch
        self._epoch = clock.epoch
        return self._begun is not None

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
        state = super().state()
        tensors, facts = dict(state.tensors), dict(state.facts)
        if self._neighbours is not None:
            tensors |= {f"neighbours.{name}": s for name, s in self._neighbours.slots.items()}
        if self._begun != 0:
            begun = "" if self._begun is None else str(self._begun)
            facts |= {"begun": begun, "epoch": str(self._epoch)}
        return MemoryState(tensors, facts)

    def _begin(self, epoch: float) -> None:
        """Refresh what is left of this epoch and the whole next one."""
        next_epoch = math.ceil(epoch - _ROUNDING)
        if self.onset.start_at > 0:
            self._epoch = next_epoch - 1  # an epoch that is under way does not count
        else:
            self._begun = next_epoch

    def _adopt(self, state: MemoryState, then: Shard) -> None:
        """Keep the neighbours that were found. With ``neighbour_scope="shard"`` another number of
        processes has other shards, and so other neighbours.
        """
        begun = state.facts.get("begun", "0")
        self._begun = int(begun) if begun else None
        self._epoch = int(state.facts.get("epoch", -1))
        self._shared_at = -1
        mine = self.cache.shard
        if self._neighbours is None or not (self.borrowing.scope == "all" or then == mine):
            return
        ids = torch.tensor(mine.ids, dtype=torch.int64)
        here = then.owns(ids).nonzero()[:, 0]
        for stream, slots in self._neighbours.slots.items():
            saved = state.tensors[f"neighbours.{stream}"][then.rows(ids[here])]
            slots[here.to(slots.device)] = saved.to(slots.device)

    # ---- what it takes and how it does

    @property
    def bytes(self) -> int:
        return super().bytes + (0 if self._shared is None else self._shared.nbytes)

    def diagnostics(self) -> MemoryHealth | None:
        cache = self.held
        return None if cache is None else memory_health(cache, self.ball, self._similarity)
