"""R-Drop (Liang et al. 2021): two passes with different dropout masks should predict the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from advreg.core.progress import Progress
from advreg.core.schedule import Clock
from advreg.methods.base import (
    Backward,
    Batch,
    Fetch,
    Method,
    ModelView,
    Need,
    Passes,
    StepReport,
    UnsupportedError,
    Update,
    option,
    register,
)
from advreg.methods.options import WeightOptions, plain


@register("rdrop")
@dataclass
class RDrop(WeightOptions, Method):
    """Keep the prediction where it is under another dropout mask.

    ½ (L₁ + L₂) + λ · ½ [KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)],  p₁ and p₂ predictions of the same batch under
    different masks.

    Reference: Liang et al., *R-Drop: Regularized Dropout for Neural Networks*, 2021, algorithm 1.

    Differs from the authors' code: the task loss is the mean of the two copies' losses, theirs the
    sum, so that λ is half of the α of their translation code (5 there is ``weight=2.5``); their
    code for GLUE sums the divergence over the samples of a batch, so that its factor of ½ is
    ``weight=B/4`` at B samples a batch (8 at 32); for regression, where it adds the squared
    difference once, it is ``weight=0.5``.
    """

    paper = "Liang et al. 2021"
    cost = "2 forward (fused), 1 backward"
    needs = frozenset[Need]({"predictions"})

    both_losses: bool = option(
        True, "task loss of both copies, averaged (paper); else of the first alone"
    )
    fuse: bool = option(True, "both copies in one pass over the doubled batch")
    _has_dropout: bool = field(default=False, init=False, repr=False)

    def begin_epoch(
        self, task: ModelView, clock: Clock, fetch: Fetch, progress: Progress | None = None
    ) -> None:
        self._require_dropout(task)

    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        self._require_dropout(task)
        if not self.onset.begun(clock):
            return plain(task, batch)
        first, second = task.pair(batch, None, self.fuse, self.both_losses)
        task_loss = task.loss(first, batch)
        penalty = task.divergence(first, second, batch, "symmetric_kl") / task.items(batch)
        return self.total(task_loss, penalty, clock)

    def _require_dropout(self, task: ModelView) -> None:
        """Refuse a model without dropout, whose two passes would be the same. Checked once."""
        if self._has_dropout:
            return
        if not task.has_dropout():
            raise UnsupportedError(
                "rdrop needs a model with dropout, got one that drops nothing: its two passes "
                "would predict the same. "
                "Set a dropout above 0 in the model's config (Llama-like models have "
                "attention_dropout), or use "
                "simcut or r3f, which need none"
            )
        self._has_dropout = True

    def passes(self) -> Passes:
        return Passes(2, 1)
