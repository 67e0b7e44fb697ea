"""The cached prediction: each sample's prediction of the last epoch is the target of the present
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from advreg.core.checks import check_choice, check_share, check_whole
from advreg.core.progress import Progress
from advreg.core.schedule import Clock
from advreg.core.scramble import combined, uniform
from advreg.core.sketch import Kind, Parts, Sketch, sketch_for
from advreg.memory.corpus import Corpus
from advreg.memory.predictions import Found, PredictionStore
from advreg.methods.base import (
    Backward,
    Batch,
    Method,
    MethodState,
    ModelView,
    Need,
    Passes,
    StepReport,
    UnsupportedError,
    Update,
    option,
    register,
)
from advreg.methods.options import TargetOptions


@register("temporal")
@dataclass
class Temporal(TargetOptions, Method):
    """Keep each prediction close to the sample's previous one, which a cache holds.

    L(θ) + λ · KL(q_i ‖ f(x_i)),  then q_i ← f(x_i), or a q_i + (1 − a) f(x_i); regression: λ · (q_i
    − f(x_i))².

    q_i is a constant: the prediction of the training pass one epoch earlier. The first epoch has
    none and is standard training. For a vocabulary, the cache holds a sketch of q_i.

    Reference: Kim et al., *Self-Knowledge Distillation with Progressive Refinement of Targets*,
    2021 (PS-KD), whose target is the prediction of the last epoch; Laine and Aila, *Temporal
    Ensembling for Semi-Supervised Learning*, 2017.

    Differs from the authors' code: the loss is CE + λ KL with a constant λ, theirs (1 − α) CE + α
    KL with α rising (``normalise=True, ramp="share"``, λ = α / (1 − α)); predictions are found by
    sample id, and come from the training pass, with dropout; temporal ensembling takes the squared
    error of probabilities, and corrects an average for its start.
    """

    paper = "Kim et al. 2021"
    cost = "1 forward, 1 backward"
    needs = frozenset[Need]({"predictions", "ids"})
    needs_corpus = True

    ensemble: float = option(
        0.0, "a, weight of the earlier predictions in the cached one; whole predictions only"
    )
    sketch: Kind = option(
        "auto",
        "form of the cached prediction: whole; lumped: the likeliest entries and the mass of the "
        "rest; drawn: these "
        "and a sample of the rest; auto: whole up to 512 outputs, else lumped",
    )
    top: int = option(8, "k, likeliest entries in a sketch")
    draws: int = option(4, "m, entries drawn from the rest in a drawn sketch")
    _items: Tensor | None = field(default=None, init=False, repr=False)  # of each sample
    _fingerprint: str = field(default="", init=False, repr=False)
    _seed: int = field(default=0, init=False, repr=False)
    _device: torch.device = field(default=torch.device("cpu"), init=False, repr=False)
    _store: PredictionStore | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("sketch", self.sketch, get_args(Kind))
        check_share("ensemble", self.ensemble)
        check_whole("top", self.top, least=1)
        check_whole("draws", self.draws, least=1)
        if self.ensemble > 0 and self.sketch in ("lumped", "drawn"):
            raise ValueError(
                f"ensemble must be 0 with sketch='{self.sketch}', got {self.ensemble}: "
                f"{_NO_ENSEMBLE}"
            )

    def prepare(
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        if corpus.shard.world > 1:
            raise UnsupportedError(
                f"temporal trains in one process so far, got {corpus.shard.world}; start one, or "
                "use rdrop or simcut"
            )
        if corpus.items is None:
            raise UnsupportedError(
                "temporal needs labels in the training data, got samples without; use simcut, or "
                "r3f"
            )
        self._items, self._fingerprint = corpus.items, corpus.fingerprint
        self._seed, self._device, self._store = seed, device, None

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        logits = task.logits(batch)
        task_loss = task.loss(logits, batch)
        sketch = self._sketch_of(task, logits, batch)
        store = self._store = self._store or self._new_store(sketch)
        labels, mask = task.targets(batch)
        found = store.find(self._ids(task, batch, logits), labels, mask)
        rows, kept = self.rows_of(logits, labels), store.read(found)
        weight = self.weight_at(clock)
        penalty = torch.zeros_like(task_loss)
        if weight > 0:
            moved = sketch.divergence(kept, rows).masked_fill(~found.known_items, 0.0)
            penalty = moved.sum() / task.items(batch)
        self._remember(store, sketch, found, kept, rows.detach())
        measures = {
            "cache_hits": found.known.float().mean(),
            "cache_changed": found.changed.float().sum(),
        }
        return self.total(task_loss, penalty, clock, measures)

    def _ids(self, task: ModelView, batch: Batch, logits: Tensor) -> Tensor:
        """Sample ids, one for each row."""
        ids = task.sample_ids(batch)
        if len(ids) != len(logits):
            raise ValueError(
                f"temporal needs a row for each sample, got {len(ids)} samples packed into "
                f"{len(logits)} rows; turn "
                "packing off"
            )
        return ids

    def _sketch_of(self, task: ModelView, logits: Tensor, batch: Batch) -> Sketch:
        """The form in which these predictions are cached."""
        prediction, outputs = task.prediction(logits, batch), logits.shape[-1]
        sketch = sketch_for(self.sketch, prediction, outputs, self.top, self.draws)
        if self.ensemble > 0 and not sketch.blends:
            raise ValueError(
                f"ensemble must be 0 for {outputs} outputs, got {self.ensemble}: {_NO_ENSEMBLE}"
            )
        return sketch

    def _new_store(self, sketch: Sketch) -> PredictionStore:
        if self._items is None:
            raise RuntimeError(
                "temporal needs method.prepare(corpus, seed, device) before the first step"
            )
        return PredictionStore(self._items, sketch.fields, self._device)

    def _remember(
        self, store: PredictionStore, sketch: Sketch, found: Found, kept: Parts, rows: Tensor
    ) -> None:
        """Cache these predictions for the next visit."""
        fresh = sketch.encode(rows, self._uniforms(store, found, sketch.draws))
        if self.ensemble > 0:
            known = found.known_items[:, None]
            fresh = {
                name: torch.where(
                    known, value.lerp(kept[name].to(value.dtype), self.ensemble), value
                )
                for name, value in fresh.items()
            }
        store.write(found, fresh)

    def _uniforms(self, store: PredictionStore, found: Found, draws: int) -> Tensor:
        """Uniform numbers for each item, (B · T, m).

        They depend on seed, sample, visit and item alone, so order, padding and a resume do not
        change them.
        """
        if draws == 0:
            return torch.empty(found.index.numel(), 0, device=found.index.device)
        each = torch.arange(draws, device=found.index.device)
        sample = combined(found.slots, store.visits[found.slots], self._seed)
        keys = combined(
            sample[:, None, None],
            (found.index - store.offsets[found.slots][:, None])[:, :, None],
            each,
        )
        return uniform(keys).flatten(0, 1)

    @property
    def memory_bytes(self) -> int:
        return 0 if self._store is None else self._store.nbytes

    def state(self) -> MethodState:
        tensors = {} if self._store is None else self._store.state()
        return MethodState(tensors, {"fingerprint": self._fingerprint})

    def load_state(self, state: MethodState) -> None:
        if self._items is None or state.facts.get("fingerprint") != self._fingerprint:
            raise ValueError(
                "the training data differs from the data of the checkpoint (its fingerprint "
                "changed), so cached "
                "predictions would be given to other samples; resume with the same data, or start "
                "a new run"
            )
        self._store = (
            PredictionStore.restored(state.tensors, self._items, self._device)
            if state.tensors
            else None
        )

    def passes(self) -> Passes:
        return Passes(1, 1)


_NO_ENSEMBLE = "the likeliest entries of two sketches cannot be averaged; use sketch='whole'"
