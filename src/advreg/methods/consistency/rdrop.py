"""R-Drop (Liang et al. 2021): two passes with different dropout masks should predict the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from advreg.methods.base import (
    Batch,
    Dropout,
    ModelView,
    Step,
    UnsupportedError,
    option,
    register,
)
from advreg.methods.options import FuseOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "rdrop",
    title="R-Drop",
    paper="Liang et al. 2021",
    cost="2 forward (fused), 1 backward",
    needs=("predictions", "dropout"),
    tune={
        "fine-tuning": {"weight": (1.0, 3.0)},
        "small": {"weight": (1.0, 3.0)},
        "translation": {"weight": (1.0, 2.5)},
    },
)
@dataclass
class RDrop(FuseOptions):
    """Keep the prediction where it is under another dropout mask.

    ½ (L₁ + L₂) + λ · ½ [KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)],  p₁ and p₂ predictions of the same batch under
    different masks.

    Reference: Liang et al., *R-Drop: Regularized Dropout for Neural Networks*, 2021, algorithm 1.

    Differs from the authors' code: the task loss is the mean of the two copies' losses, theirs the
    sum, so that λ is half of the α of their translation code (5 there is ``weight=2.5``); their
    code for GLUE sums the divergence over the samples of a batch, so that its factor of ½ is
    ``weight=B/4`` at B samples a batch (8 at 32); for regression, where it adds the squared
    difference once, it is ``weight=0.5``.

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> report = RDrop().step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> bool(report.penalty > 0)
        True
    """

    both_losses: bool = option(
        True, "task loss of both copies, averaged (paper); else of the first alone"
    )
    dropout: ClassVar[Dropout] = "fresh"
    _has_dropout: bool = field(default=False, init=False, repr=False, compare=False)

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        self._require_dropout(view)
        second = self.beside(clean, None, self.both_losses)
        value = view.divergence(clean.logits, second, batch, "symmetric_kl") / view.items(batch)
        return Penalty(value)

    def _require_dropout(self, view: ModelView) -> None:
        """Refuse a model without dropout, whose two passes would be the same. Checked once."""
        if self._has_dropout:
            return
        if not view.has_dropout():
            raise UnsupportedError(
                "rdrop needs a model with dropout, got one that drops nothing: its two passes "
                "would predict the same. "
                "Set a dropout above 0 in the model's config (Llama-like models have "
                "attention_dropout), or use "
                "simcut or r3f, which need none"
            )
        self._has_dropout = True
