"""ARCH (Zuo et al. 2021): compute each sample's perturbation once in a while, cache it, reuse
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from advreg.core.checks import check_choice, check_not_negative, check_share, check_whole
from advreg.core.perturbation import Perturbation
from advreg.core.progress import Progress, counting
from advreg.core.schedule import Clock, RefreshEvery
from advreg.core.shard import Shard
from advreg.memory.cache import PerturbationCache, cache_bytes
from advreg.memory.codec import CacheDtype
from advreg.memory.corpus import Corpus
from advreg.memory.diagnostics import memory_health, similarity_histograms
from advreg.memory.neighbours import (
    NeighbourChoice,
    NeighbourIndex,
    SearchMethod,
    check_neighbours,
    require_faiss,
)
from advreg.memory.reshard import joined, part_of
from advreg.memory.shared_means import SharedMeans, assembled
from advreg.memory.tiers import (
    CacheDevice,
    Place,
    choose_tier,
    device_budget,
    disk_folder,
    host_budget,
)
from advreg.methods.base import (
    Backward,
    Batch,
    Fetch,
    Method,
    MethodState,
    ModelView,
    Need,
    Passes,
    StepReport,
    Update,
    option,
    register,
)
from advreg.methods.options import AscentOptions, plain
from advreg.records.diagnostics import Histogram, MemoryHealth

Refresh = Literal["epoch", "sweep"]
NeighbourScope = Literal["all", "shard"]
Borrowed = Literal["mean", "rescaled"]

_ROUNDING = 1e-6  # of an epoch that is told as a number of steps over their number in an epoch


@register("arch")
@dataclass
class Arch(AscentOptions, Method):
    """Adversarial regularisation with caching.

    min_θ L(θ) + λ/n Σ_i ℓ_v(x_i, δ_i^t, θ), where

        δ_i^t = δ_i^{t−1}                     if t % T_c ≠ 0,
        δ_i^t = α δ_i^{t−1} + (1 − α) Δ_i^t   if t % T_c = 0,  Δ_i^t = argmax_{‖δ‖ ≤ ε} ℓ_v(x_i, δ,
        θ),

    and, with ``cache_fraction`` < 1, a sample that is not cached borrows the mean perturbation of
    its K nearest neighbours in the cache set.

    Reference: Zuo et al., *ARCH: Efficient Adversarial Regularized Training with Caching*, EMNLP
    Findings 2021, algorithms 1 (``cache_fraction=1``), 2 and 3.

    Differs from the authors' code: δ itself is cached (not its distance from the random start), by
    sample id (not by position in the batch), on the real tokens (not from position 0 of a
    left-padded row); epochs count from zero; the gradient flows through both predictions, as the
    equation says, unless ``detach_clean``.

    Departures from the paper, off unless asked for: ``share_last_pass`` and ``refresh="sweep"``
    make a refresh cheaper; ``cache_dtype`` other than float32 rounds what is cached;
    ``borrowed="rescaled"`` makes up for what a mean over tokens loses in size.
    """

    paper = "Zuo et al. 2021"
    cost = "2 + S/T_c forward (2 of them fused), 1 + S/T_c backward"
    needs = frozenset[Need]({"predictions", "perturbation", "ids"})
    needs_corpus = True
    movable = ("cache_device", "cache_budget_gb", "cache_folder", "sweep_tokens")

    refresh_every: int | None = option(
        15, "T_c, epochs between two refreshes of the cache; none: once, at epoch 0"
    )
    ema: float = option(0.01, "α, weight of the old perturbation at a refresh")
    cache_fraction: float = option(0.1, "p, share of the samples whose perturbation is cached")
    neighbours: int = option(1, "K, neighbours averaged for a sample that is not cached")
    borrowed: Borrowed = option(
        "mean",
        "a borrowed perturbation: mean over the neighbours' tokens (paper), or that rescaled to "
        "size ε",
    )
    neighbour_choice: NeighbourChoice = option(
        "nearest", "nearest by cosine similarity, or random (the ablation)"
    )
    neighbour_search: SearchMethod = option(
        "auto", "exact; faiss (approximate, CPU); auto: faiss only where exact is slow"
    )
    neighbour_scope: NeighbourScope = option(
        "all",
        "of many processes: all (means exchanged at each refresh), or shard: neighbours within a "
        "process",
    )
    cache_dtype: CacheDtype = option(
        "float32", "how rows are stored; int8 and int4 have a scale per row"
    )
    cache_device: CacheDevice = option(
        "auto", "where rows live: device, host memory, disk; auto: the first with room"
    )
    cache_budget_gb: float | None = option(
        None, "GB on the device for auto; none: a quarter of what is free"
    )
    cache_folder: str | None = option(
        None, "folder of a cache on disk; none: the system's temporary one"
    )
    fuse: bool = option(True, "clean and perturbed copies in one pass over the doubled batch")
    share_last_pass: bool = option(
        False, "at a refresh train on the last ascent's pass (δ_{S−1}): a pass less"
    )
    refresh: Refresh = option(
        "epoch", "epoch: while training on it (paper); sweep: cached samples alone, before it"
    )
    sweep_tokens: int = option(8192, "tokens in a batch of a sweep")
    _cache: PerturbationCache | None = field(default=None, init=False, repr=False)
    _neighbours: NeighbourIndex | None = field(default=None, init=False, repr=False)
    _similarity: list[Histogram] = field(default_factory=list, init=False, repr=False)
    _shared: SharedMeans | None = field(
        default=None, init=False, repr=False
    )  # with several processes
    _shared_at: int = field(
        default=-1, init=False, repr=False
    )  # epoch of the refresh whose means they are
    _fingerprint: str = field(default="", init=False, repr=False)
    _checksum: str = field(default="", init=False, repr=False)
    _swept_at: int = field(
        default=-1, init=False, repr=False
    )  # epoch before which the cache was last swept
    _begun: int | None = field(
        default=None, init=False, repr=False
    )  # the first epoch that the cache sees whole
    _epoch: int = field(default=-1, init=False, repr=False)  # of the last step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schedule  # built once to refuse bad values here and not in training  # noqa: B018
        check_share("ema", self.ema)
        if not 0 < self.cache_fraction <= 1:
            raise ValueError(
                f"cache_fraction must be above 0 and at most 1, got {self.cache_fraction}"
            )
        check_whole("neighbours", self.neighbours, least=1)
        check_choice("borrowed", self.borrowed, get_args(Borrowed))
        check_choice("neighbour_choice", self.neighbour_choice, get_args(NeighbourChoice))
        check_choice("neighbour_search", self.neighbour_search, get_args(SearchMethod))
        check_choice("neighbour_scope", self.neighbour_scope, get_args(NeighbourScope))
        check_choice("cache_dtype", self.cache_dtype, get_args(CacheDtype))
        check_choice("cache_device", self.cache_device, get_args(CacheDevice))
        if self.cache_budget_gb is not None:
            check_not_negative("cache_budget_gb", self.cache_budget_gb)
        check_choice("refresh", self.refresh, get_args(Refresh))
        check_whole("sweep_tokens", self.sweep_tokens, least=1)
        self._check_sharing()

    def _check_sharing(self) -> None:
        if not self.share_last_pass:
            return
        if self.refresh == "sweep":
            raise ValueError(
                "share_last_pass must be off with refresh='sweep': a sweep has no pass to train on"
            )
        if self.ramp != "constant":
            raise ValueError(
                f"share_last_pass must be off with ramp='{self.ramp}': at weight 0 no ascent is "
                "shared"
            )
        if self.weight == 0 or self.ascent_steps == 0:
            raise ValueError(
                f"share_last_pass must be off with weight {self.weight} and ascent_steps "
                f"{self.ascent_steps}: "
                "there is no ascent whose pass could be shared"
            )

    @property
    def needs_whole_weights(self) -> str:
        return (
            "refresh='sweep'" if self.refresh == "sweep" else ""
        )  # processes sweep as many batches as they have

    @property
    def schedule(self) -> RefreshEvery:
        return RefreshEvery(self.refresh_every, self._begun or 0)

    @property
    def cache(self) -> PerturbationCache:
        if self._cache is None:
            raise RuntimeError(
                "arch has no cache yet; call method.prepare(corpus, seed, device) before the first "
                "step"
            )
        return self._cache

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
        place = self._place(corpus, rows, device)
        self._cache = PerturbationCache(
            mine, shard, corpus.lengths, corpus.widths, self.cache_dtype, place
        )
        self._fingerprint, self._checksum = corpus.fingerprint, corpus.checksum
        self._swept_at = self._shared_at = self._epoch = -1
        self._begun = None
        self._neighbours, self._shared, self._similarity = None, None, []
        if count < shard.size:
            shares = shard.world > 1 and self.neighbour_scope == "all"
            self._shared = SharedMeans(self._cache, cached) if shares else None
            anchors = _everyones(corpus.vectors, rows, cached, shard, device) if shares else None
            neighbours = NeighbourIndex.build(
                corpus.vectors,
                rows,
                self.neighbours,
                self.neighbour_choice,
                generator,
                device=device,
                search=self.neighbour_search,
                advance=counting(
                    progress, "finding neighbours", (len(corpus) - len(rows)) * len(corpus.vectors)
                ),
                anchors=anchors,
                shard=shard,
            )
            self._similarity = similarity_histograms(corpus.vectors, rows, neighbours, anchors)
            self._neighbours = neighbours.to(device)

    def require(self, samples: int) -> None:
        cached = self._cached_of(samples)
        if cached < samples:
            check_neighbours(self.neighbours, cached)
        if self.neighbour_search == "faiss":
            require_faiss()
        disk_folder(self.cache_folder)

    def _cached_of(self, samples: int) -> int:
        """⌊n·p⌋."""
        count = int(samples * self.cache_fraction + 1e-9)  # 100 · 0.29 is 28.999… in floating point
        if count == 0:
            raise ValueError(
                f"cache_fraction {self.cache_fraction} of {samples} samples caches none; make it "
                f"{1.05 / samples:.2g} or more"
            )
        return count

    def _place(self, corpus: Corpus, rows: Tensor, device: torch.device) -> Place:
        """Where the cache goes: as asked, or the nearest tier with room for it."""
        if self.cache_device != "auto":
            return Place(device, self.cache_device, self.cache_folder)
        tokens = {stream: int(lengths[rows].sum()) for stream, lengths in corpus.lengths.items()}
        needed = cache_bytes(tokens, len(rows), corpus.widths, self.cache_dtype)
        tier = choose_tier(needed, device_budget(device, self.cache_budget_gb), host_budget())
        return Place(device, tier, self.cache_folder)

    def begin_memory(self, epoch: float) -> None:
        """Refresh what is left of this epoch and the whole next one; a sweep fills the cache at
        once.
        """
        if self.start_at > 0:
            self._epoch = (
                math.ceil(epoch - _ROUNDING) - 1
            )  # an epoch that is under way does not count
        else:
            self._begun = (
                math.floor(epoch + _ROUNDING)
                if self.refresh == "sweep"
                else math.ceil(epoch - _ROUNDING)
            )

    def begin_epoch(
        self, task: ModelView, clock: Clock, fetch: Fetch, progress: Progress | None = None
    ) -> None:
        """With ``refresh="sweep"`` renew the cache; with several processes exchange what was
        renewed.
        """
        if not self._has_begun(clock):
            return
        due = self.schedule.due(clock.epoch)
        if (
            due and self.refresh == "sweep" and self._swept_at != clock.epoch
        ):  # if not resumed in mid-epoch
            self._sweep(task, clock, fetch, progress)
        renewed_at = self.schedule.last(clock.epoch)
        if (
            self._shared is not None
            and self._shared_at != renewed_at
            and (not due or self.refresh == "sweep")
        ):
            self._shared.gather()
            self._shared_at = renewed_at

    def _sweep(
        self, task: ModelView, clock: Clock, fetch: Fetch, progress: Progress | None
    ) -> None:
        """Renew the perturbations of the cache set, and of no other sample, in one go."""
        done = 0
        for batch in fetch(self.cache.groups(self.sweep_tokens)):
            ids = task.sample_ids(batch)
            with task.dropout(self.dropout):
                clean = self._clean(task, batch)
                self.cache.write(
                    ids, self.worst_case(task, batch, clean), self.ema, self.ball, clock.epoch
                )
            done += len(ids)
            if progress is not None:
                progress("renewing the cache", done, len(self.cache.ids))
        self._swept_at = clock.epoch

    def _clean(self, task: ModelView, batch: Batch) -> Tensor:
        """f(x) without gradient, in as many parts as it takes."""
        shape = task.zeros(batch)
        with torch.no_grad():
            parts = self._fitting(
                shape.batch_size, shape.width, lambda rows: task.peek(task.part(batch, rows))
            )
        return torch.cat(parts)

    def concerns(self, epochs: float) -> Sequence[str]:
        every, ascent = self.refresh_every, self.ascent.concerns()
        if every is None or every < epochs or epochs <= 1:
            return ascent
        return (
            *ascent,
            f"refresh_every={every} is not reached in {epochs:g} epochs: the perturbations of the "
            "first one are kept "
            "to the end, and stale ones gained nothing where it was measured; try "
            f"refresh_every={round(epochs / 3) or 1}, or None if they are meant to be cached once",
        )

    @property
    def looks_ahead(self) -> bool:
        return self._cache is not None and not self._cache.place.is_near

    def expect(self, ids: Tensor) -> None:
        self.cache.expect(ids)

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        if not self._has_begun(clock):
            return plain(task, batch)
        ids = task.sample_ids(batch)
        with task.dropout(self.dropout):
            if not self.schedule.due(clock.epoch) or self._has_swept(clock.epoch):
                delta = self.recall(ids, task.zeros(batch))
                clean, perturbed = task.pair(batch, delta, self.fuse and self.dropout != "shared")
                report = self.descend(task, batch, clock, clean, perturbed, delta)
            elif self.share_last_pass:
                report = self._refresh_shared(task, batch, ids, clock)
            else:
                report = self._refresh(task, batch, ids, clock)
        measures = {
            **report.measures,
            "cache_staleness": float(clock.epoch - self.schedule.last(clock.epoch)),
        }
        return StepReport(report.loss, report.task_loss, report.penalty, measures)

    def _has_begun(self, clock: Clock) -> bool:
        """Whether the memory has begun: with the first epoch whose first step comes after
        ``start_at``.
        """
        if self._begun is None and clock.epoch != self._epoch and self.onset.begun(clock):
            self._begun = clock.epoch
        self._epoch = clock.epoch
        return self._begun is not None

    def _refresh(self, task: ModelView, batch: Batch, ids: Tensor, clock: Clock) -> StepReport:
        """Find Δ_i, blend it into the cache, train on the result (algorithm 1)."""
        clean = task.logits(batch)
        found = self.worst_case(task, batch, clean)
        delta = self.cache.write(ids, found, self.ema, self.ball, clock.epoch)
        return self.descend(task, batch, clock, clean, task.peek(batch, delta), delta)

    def _refresh_shared(
        self, task: ModelView, batch: Batch, ids: Tensor, clock: Clock
    ) -> StepReport:
        """The same with the S-th ascent's pass trained on: one forward and one backward less. Not
        in the paper.

        The loss is taken at δ_{S−1}; its backward gives the S-th ascent's gradient too, and Δ_i =
        δ_S is cached.
        """
        clean = task.logits(batch)
        point = self.worst_case(task, batch, clean, self.ascent_steps - 1).leaf()
        report = self.descend(task, batch, clock, clean, task.peek(batch, point), point)
        one = torch.ones(
            (), device=clean.device, requires_grad=True
        )  # its gradient: how backward scales the loss
        per_sample = self.weight / task.items(batch)

        def cache_last(gradients: Sequence[Tensor | None]) -> None:
            scale, *moved = (
                torch.zeros_like(one) if gradient is None else gradient for gradient in gradients
            )
            values = {
                stream: value / (scale * per_sample)
                for stream, value in zip(point.streams, moved, strict=True)
            }
            found = self.ascent.move(
                point, Perturbation(values, point.masks).map(lambda value, _: value), self.ball
            )
            self.cache.write(ids, found, self.ema, self.ball, clock.epoch)

        register_multi_grad_hook([one, *point.values.values()], cache_last)
        return replace(report, loss=report.loss + (one - one.detach()))

    def _has_swept(self, epoch: int) -> bool:
        if self.refresh == "sweep" and self._swept_at != epoch:
            raise RuntimeError(
                "refresh='sweep' needs method.begin_epoch(task, clock, fetch) before epoch "
                f"{epoch}; the trainers do it"
            )
        return self.refresh == "sweep"

    def recall(self, ids: Tensor, zeros: Perturbation) -> Perturbation:
        """δ_i^{t−1} from the cache, or for an uncached sample the mean of its neighbours'
        (construct-adv equation).
        """
        slots = self.cache.find(ids, zeros, at_once=False)
        delta = self.cache.read(ids, zeros, slots)
        if self._neighbours is not None:
            rows = self.cache.shard.rows(ids)
            borrowed = self._neighbours.borrow(rows, self._shared or self.cache, zeros)
            delta = delta.where(
                slots >= 0, self.ball.rescale(borrowed) if self.borrowed == "rescaled" else borrowed
            )
        return self.ball.project(delta)

    @property
    def memory_bytes(self) -> int:
        return sum(held.nbytes for held in (self._cache, self._shared) if held is not None)

    def health(self) -> MemoryHealth | None:
        return (
            None if self._cache is None else memory_health(self._cache, self.ball, self._similarity)
        )

    def state(self) -> MethodState:
        self.cache.settle()
        shard = self.cache.shard
        tensors = {f"cache.{name}": value for name, value in self.cache.state_dict().items()}
        if self._neighbours is not None:
            tensors |= {
                f"neighbours.{stream}": slots for stream, slots in self._neighbours.slots.items()
            }
        facts = {"fingerprint": self._fingerprint, "checksum": self._checksum}
        facts |= {"rank": str(shard.rank), "world": str(shard.world)}
        if self.refresh == "sweep":
            facts["swept_at"] = str(self._swept_at)
        if self._begun != 0:
            facts |= {
                "begun": "" if self._begun is None else str(self._begun),
                "epoch": str(self._epoch),
            }
        return MethodState(tensors, facts)

    def load_state(self, state: MethodState) -> None:
        self._require_same_data("fingerprint", self._fingerprint, state)
        self.cache.load_state_dict(_under("cache.", state.tensors))
        if self._neighbours is not None:
            for stream, slots in _under("neighbours.", state.tensors).items():
                self._neighbours.slots[stream].copy_(slots)
        self._swept_at = int(state.facts.get("swept_at", -1))
        begun = state.facts.get("begun", "0")
        self._begun = int(begun) if begun else None
        self._shared_at = -1
        self._epoch = int(state.facts.get("epoch", -1))

    def redealt(self, states: Iterable[MethodState]) -> MethodState:
        """Every sample's perturbation goes to the process the sample belongs to now, and so do its
        neighbours.

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
            self._require_same_data("checksum", self._checksum, state)
            parts.append(part_of(_under("cache.", state.tensors), shard))
            facts = {**state.facts, "fingerprint": self._fingerprint}
            then = Shard(shard.size, int(facts.get("rank", 0)), int(facts.get("world", 1)))
            here = then.owns(mine)
            for name in tensors if self.neighbour_scope == "all" else ():
                tensors[name][here] = state.tensors[name][then.rows(mine[here])]
        return MethodState(
            {**tensors, **{f"cache.{name}": value for name, value in joined(parts).items()}}, facts
        )

    def _require_same_data(self, name: str, mine: str, state: MethodState) -> None:
        if state.facts.get(name) != mine:
            raise ValueError(
                f"the training data differs from the data of the checkpoint (its {name} changed), "
                "so cached "
                "perturbations would be given to other sentences; resume with the same data, or "
                "start a new run"
            )

    def passes(self) -> Passes:
        often = 1 / self.refresh_every if self.refresh_every else 0.0
        if self.refresh == "sweep":
            often *= self.cache_fraction
            return Passes(2 + often * (self.ascent_steps + 1), 1 + often * self.ascent_steps)
        extra = self.ascent_steps - self.share_last_pass
        return Passes(2 + often * extra, 1 + often * extra)


def _everyones(
    vectors: Mapping[str, Tensor], rows: Tensor, cached: Tensor, shard: Shard, device: torch.device
) -> dict[str, Tensor]:
    """The sentence vectors of the whole cache set, of which every process has seen its own
    samples'.
    """
    return {
        stream: assembled(vector[rows.to(vector.device)].to(device), cached.to(device), shard.world)
        for stream, vector in vectors.items()
    }


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose name starts with the prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
