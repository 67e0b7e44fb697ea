"""The cached prediction: each sample's prediction of the last epoch is the target of the present
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from advreg.core.checks import check_count
from advreg.core.sketch import Kind, sketch_for
from advreg.memory.predictions import PredictionMemory
from advreg.methods.base import (
    Batch,
    ModelView,
    Step,
    option,
    register,
)
from advreg.methods.options import STORAGE, StorageOptions, TargetOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "temporal",
    title="Cached prediction",
    paper="Kim et al. 2021",
    cost="1 forward, 1 backward",
    needs=("predictions", "ids", "labels"),
    traits=("corpus",),
    movable=STORAGE,
    tune={
        "fine-tuning": {"weight": (1.0, 3.0, 10.0)},
        "small": {"weight": (1.0, 3.0, 10.0)},
        "translation": {"weight": (1.0, 3.0, 10.0)},
    },
)
@dataclass
class Temporal(StorageOptions, TargetOptions):
    """Keep each prediction close to the sample's previous one, which a cache holds.

    L(θ) + λ · KL(q_i ‖ f(x_i)),  then q_i ← f(x_i); regression: λ · (q_i − f(x_i))².

    q_i is a constant: the prediction of the training pass one epoch earlier. The first epoch has
    none and is standard training. For a vocabulary, the cache holds a sketch of q_i. A sample that
    comes twice in an accumulation group has as its target the prediction of its last visit.

    Reference: Kim et al., *Self-Knowledge Distillation with Progressive Refinement of Targets*,
    2021 (PS-KD), whose target is the prediction of the last epoch; Laine and Aila, *Temporal
    Ensembling for Semi-Supervised Learning*, 2017.

    Differs from the authors' code: the loss is CE + λ KL with a constant λ, theirs (1 − α) CE + α
    KL with α rising; predictions are found by sample id, and come from the training pass, with
    dropout; temporal ensembling takes the squared error of probabilities, to an average of all
    earlier epochs.

    Example:
        >>> from advreg import prepare
        >>> session = prepare(model, loader, Temporal(weight=10.0), optimizer)
        >>> reports = [session.step(batch) for batch in session.loader]
        >>> all(bool(report.loss > 0) for report in reports)
        True
    """

    sketch: Kind = option(
        "auto",
        "form of the cached prediction: whole; lumped: the likeliest entries and the mass of the "
        "rest; drawn: these "
        "and a sample of the rest; auto: whole up to 512 outputs, else lumped",
    )
    top: int = option(8, "k, likeliest entries in a sketch", check=check_count)
    draws: int = option(4, "m, entries drawn from the rest in a drawn sketch", check=check_count)
    memory: PredictionMemory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        form = partial(sketch_for, self.sketch, top=self.top, draws=self.draws)
        self.memory = PredictionMemory(form, storage=self.storage)

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        logits = clean.logits
        sketch = self.memory.form(view.prediction(logits, batch), logits.shape[-1])
        store = self.memory.open(sketch.fields)
        labels, mask = view.targets(batch)
        found = store.find(self._ids(view, batch, logits), labels, mask)
        rows, kept = self.rows_of(logits, labels), store.read(found)
        value = rows.new_zeros(())
        if self.weight_at(step.clock) > 0:
            moved = sketch.divergence(kept, rows).masked_fill(~found.known_items, 0.0)
            value = moved.sum() / view.items(batch)
        uniforms = store.uniforms(found, self.memory.seed, sketch.draws)
        store.write(found, sketch.encode(rows.detach(), uniforms))
        measures = {
            "cache_hits": found.known.float().mean(),
            "cache_changed": found.changed.float().sum(),
        }
        return Penalty(value, measures)

    def _ids(self, view: ModelView, batch: Batch, logits: Tensor) -> Tensor:
        """Sample ids, one for each row."""
        ids = view.sample_ids(batch)
        if len(ids) != len(logits):
            raise ValueError(
                f"temporal needs a row for each sample, got {len(ids)} samples packed into "
                f"{len(logits)} rows; turn "
                "packing off"
            )
        return ids
