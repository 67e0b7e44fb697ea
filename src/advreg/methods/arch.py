"""ARCH (Zuo et al. 2021): compute each sample's perturbation once in a while, cache it, reuse it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from advreg.core.checks import check_choice, check_share, check_whole
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Clock, RefreshEvery
from advreg.memory.cache import PerturbationCache
from advreg.memory.corpus import Corpus
from advreg.memory.neighbours import NeighbourChoice, NeighbourIndex
from advreg.methods.base import Backward, Batch, Method, MethodState, Passes, StepReport, Task, Update, option, register
from advreg.methods.options import AscentOptions

CacheDtype = Literal["float32", "float16"]
CacheDevice = Literal["model", "host"]


@register("arch")
@dataclass
class Arch(AscentOptions, Method):
    """Adversarial regularisation with caching.

    min_θ L(θ) + λ/n Σ_i ℓ_v(x_i, δ_i^t, θ), where

        δ_i^t = δ_i^{t−1}                     if t % T_c ≠ 0,
        δ_i^t = α δ_i^{t−1} + (1 − α) Δ_i^t   if t % T_c = 0,  Δ_i^t = argmax_{‖δ‖ ≤ ε} ℓ_v(x_i, δ, θ),

    and, with ``cache_fraction`` < 1, a sample that is not cached borrows the mean perturbation of its K nearest
    neighbours in the cache set.

    Reference: Zuo et al., *ARCH: Efficient Adversarial Regularized Training with Caching*, EMNLP Findings 2021,
    algorithms 1 (``cache_fraction=1``), 2 and 3.

    Differs from the authors' code: δ itself is cached (not its distance from the random start), by sample id (not by
    position in the batch), on the real tokens (not from position 0 of a left-padded row); epochs count from zero; the
    gradient flows through both predictions, as the equation says, unless ``detach_clean``.
    """

    paper = "Zuo et al. 2021"
    cost = "2 + S/T_c forward (2 of them fused), 1 + S/T_c backward"
    needs_corpus = True

    refresh_every: int | None = option(15, "T_c, epochs between two refreshes of the cache; none: once, at epoch 0")
    ema: float = option(0.01, "α, weight of the old perturbation at a refresh")
    cache_fraction: float = option(0.1, "p, share of the samples whose perturbation is cached")
    neighbours: int = option(1, "K, neighbours averaged for a sample that is not cached")
    neighbour_choice: NeighbourChoice = option("nearest", "nearest by cosine similarity, or random (the ablation)")
    cache_dtype: CacheDtype = option("float32", "how cached rows are stored: float32 or float16")
    cache_device: CacheDevice = option("model", "where the cache lives: beside the model, or in host memory")
    fuse: bool = option(True, "clean and perturbed copies in one pass over the doubled batch")
    _cache: PerturbationCache | None = field(default=None, init=False, repr=False)
    _neighbours: NeighbourIndex | None = field(default=None, init=False, repr=False)
    _fingerprint: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schedule  # built once to refuse bad values here and not in training  # noqa: B018
        check_share("ema", self.ema)
        if not 0 < self.cache_fraction <= 1:
            raise ValueError(f"cache_fraction must be above 0 and at most 1, got {self.cache_fraction}")
        check_whole("neighbours", self.neighbours, least=1)
        check_choice("neighbour_choice", self.neighbour_choice, get_args(NeighbourChoice))
        check_choice("cache_dtype", self.cache_dtype, get_args(CacheDtype))
        check_choice("cache_device", self.cache_device, get_args(CacheDevice))

    @property
    def schedule(self) -> RefreshEvery:
        return RefreshEvery(self.refresh_every)

    @property
    def cache(self) -> PerturbationCache:
        if self._cache is None:
            raise RuntimeError("arch has no cache yet; call method.prepare(corpus, seed, device) before the first step")
        return self._cache

    def prepare(self, corpus: Corpus, seed: int, device: torch.device) -> None:
        """Draw the cache set X of ⌊n·p⌋ samples and find every other sample's neighbours in it (algorithm 2)."""
        size = len(corpus)
        count = int(size * self.cache_fraction + 1e-9)  # 100 · 0.29 is 28.999… in floating point
        if count == 0:
            raise ValueError(
                f"cache_fraction {self.cache_fraction} of {size} samples caches none; make it {1.05 / size:.2g} or more"
            )
        generator = torch.Generator().manual_seed(seed)
        cached = torch.randperm(size, generator=generator)[:count].sort().values
        home = device if self.cache_device == "model" else torch.device("cpu")
        dtype = torch.float32 if self.cache_dtype == "float32" else torch.float16
        self._cache = PerturbationCache(cached, size, corpus.lengths, corpus.widths, dtype, home)
        self._fingerprint = corpus.fingerprint
        self._neighbours = None
        if count < size:
            self._neighbours = NeighbourIndex.build(
                corpus.vectors, cached, self.neighbours, self.neighbour_choice, generator
            )

    def step(
        self,
        task: Task,
        batch: Batch,
        clock: Clock,
        backward: Backward = torch.Tensor.backward,
        update: Update | None = None,
    ) -> StepReport:
        ids = task.sample_ids(batch)
        with task.dropout(self.dropout):
            if self.schedule.due(clock.epoch):
                clean = task.peek(batch)
                found = self.worst_case(task, batch, clean)
                delta = self.cache.write(ids, found, self.ema, self.ball, clock.epoch)
                perturbed = task.logits(batch, delta)
            else:
                delta = self.recall(ids, task.zeros(batch))
                clean, perturbed = task.pair(batch, delta, self.fuse and self.dropout != "shared")
            report = self.descend(task, batch, clean, perturbed, delta, backward)
        measures = {**report.measures, "cache_staleness": self.cache.staleness(ids, clock.epoch)}
        return StepReport(report.loss, report.task_loss, report.penalty, measures)

    def recall(self, ids: Tensor, zeros: Perturbation) -> Perturbation:
        """δ_i^{t−1} from the cache, or for an uncached sample the mean of its neighbours' (construct-adv equation)."""
        delta = self.cache.read(ids, zeros)
        if self._neighbours is not None:
            cached = (self.cache.slots(ids) >= 0).to(delta.device)
            delta = delta.where(cached, self._neighbours.borrow(ids, self.cache, zeros))
        return self.ball.project(delta)

    @property
    def memory_bytes(self) -> int:
        return 0 if self._cache is None else self._cache.nbytes

    def state(self) -> MethodState:
        tensors = {f"cache.{name}": value for name, value in self.cache.state_dict().items()}
        if self._neighbours is not None:
            tensors |= {f"neighbours.{stream}": slots for stream, slots in self._neighbours.slots.items()}
        return MethodState(tensors, {"fingerprint": self._fingerprint})

    def load_state(self, state: MethodState) -> None:
        if state.facts.get("fingerprint") != self._fingerprint:
            raise ValueError(
                "the training data differs from the data of the checkpoint (its fingerprint changed), so cached "
                "perturbations would be given to other sentences; resume with the same data, or start a new run"
            )
        self.cache.load_state_dict(_under("cache.", state.tensors))
        if self._neighbours is not None:
            self._neighbours.slots.update(_under("neighbours.", state.tensors))

    def passes(self) -> Passes:
        share = self.ascent_steps / self.refresh_every if self.refresh_every else 0.0
        return Passes(2 + share, 1 + share)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose name starts with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
