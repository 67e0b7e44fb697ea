"""ARCH (Zuo et al. 2021): compute each sample's perturbation once in a while, cache it, reuse
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from advreg.core.checks import check_count, check_share
from advreg.core.schedule import Clock
from advreg.memory.cache import CacheDtype
from advreg.memory.neighbours import Borrowing, NeighbourChoice, NeighbourScope
from advreg.memory.perturbations import PerturbationMemory
from advreg.methods.base import (
    Batch,
    ModelView,
    Passes,
    Step,
    option,
    register,
)
from advreg.methods.options import STORAGE, AscentOptions, FuseOptions, StorageOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "arch",
    title="ARCH",
    paper="Zuo et al. 2021",
    cost="2 + S/T_c forward (2 of them fused), 1 + S/T_c backward",
    needs=("predictions", "perturbation", "ids"),
    traits=("corpus",),
    movable=STORAGE,
    tune={
        "understanding": {"ascent_steps": (1, 2), "step_size": (1e-4, 1e-5)},
        "fine-tuning": {"weight": (1.0, 3.0)},
        "small": {"radius": (0.1, 0.3, 1.0), "weight": (0.5, 1.0)},
        "translation": {"weight": (0.5, 1.0, 2.0)},
    },
)
@dataclass
class Arch(StorageOptions, FuseOptions, AscentOptions):
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

    Departure from the paper, off unless asked for: ``cache_dtype`` other than float32 rounds what
    is cached.

    Example:
        >>> from advreg import prepare
        >>> session = prepare(model, loader, Arch(refresh_every=2, cache_fraction=0.5), optimizer)
        >>> reports = [session.step(batch) for batch in session.loader]
        >>> all(bool(report.loss > 0) for report in reports)
        True
    """

    refresh_every: int | None = option(
        15, "T_c, epochs between two refreshes of the cache; none: once, at epoch 0"
    )
    ema: float = option(0.01, "α, weight of the old perturbation at a refresh", check=check_share)
    cache_fraction: float = option(0.1, "p, share of the samples whose perturbation is cached")
    neighbours: int = option(
        1, "K, neighbours averaged for a sample that is not cached", check=check_count
    )
    neighbour_choice: NeighbourChoice = option(
        "nearest", "nearest by cosine similarity, or random (the ablation)"
    )
    neighbour_scope: NeighbourScope = option(
        "all",
        "of many processes: all (means exchanged at each refresh), or shard: neighbours within a "
        "process",
    )
    cache_dtype: CacheDtype = option("float32", "how rows are stored")
    memory: PerturbationMemory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = PerturbationMemory(
            self.cache_fraction,
            self.ema,
            self.ball,
            self.refresh_every,
            self.onset,
            Borrowing(self.neighbours, self.neighbour_choice, self.neighbour_scope),
            self.cache_dtype,
            storage=self.storage,
        )

    def warnings(self, epochs: float) -> Sequence[str]:
        every, ascent = self.refresh_every, super().warnings(epochs)
        if every is None or every < epochs or epochs <= 1:
            return ascent
        return (
            *ascent,
            f"refresh_every={every} is not reached in {epochs:g} epochs: the perturbations of the "
            "first one are kept to the end, and stale ones gained nothing where it was measured; "
            f"try refresh_every={round(epochs / 3) or 1}, or None if they are meant to be cached "
            "once",
        )

    def has_begun(self, clock: Clock) -> bool:
        return self.memory.has_begun(clock)

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        epoch, schedule, ids = step.clock.epoch, self.memory.schedule, view.sample_ids(batch)
        if schedule.due(epoch):  # find Δ_i, blend it into the cache, train on the result
            found = self.worst_case(view, batch, clean.logits)
            delta = self.memory.write(ids, found, epoch)
            perturbed = view.bare_logits(batch, delta)
        else:
            delta = self.memory.read(ids, view.zeros(batch), epoch)
            perturbed = self.beside(clean, delta)
        measures: dict[str, Tensor | float] = {
            "delta_norm": delta.sentence_norm().mean(),
            "cache_staleness": float(epoch - schedule.last(epoch)),
        }
        return self.compared(view, batch, clean.logits, perturbed, measures)

    def passes(self) -> Passes:
        often = 1 / self.refresh_every if self.refresh_every else 0.0
        return Passes(2 + often * self.ascent_steps, 1 + often * self.ascent_steps)
