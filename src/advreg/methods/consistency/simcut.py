"""SimCut (Gao et al. 2022): the prediction should not change when some token embeddings are cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from advreg.core.ball import uniform_noise
from advreg.core.checks import check_share
from advreg.core.perturbation import Cut
from advreg.methods.base import (
    Batch,
    ModelView,
    Step,
    option,
    register,
)
from advreg.methods.options import DivergenceOptions, DropoutOptions, FuseOptions
from advreg.methods.regulariser import CleanPass, Penalty


@register(
    "simcut",
    title="SimCut",
    paper="Gao et al. 2022",
    cost="2 forward (fused), 1 backward",
    tune={
        "fine-tuning": {"weight": (1.0, 3.0)},
        "small": {"weight": (1.0, 3.0)},
        "translation": {"weight": (1.0, 3.0)},
    },
)
@dataclass
class SimCut(FuseOptions, DropoutOptions, DivergenceOptions):
    """Keep the prediction where it is when token embeddings are cut.

    L(θ) + λ · KL(f(x) ‖ f(cut x)), where cut sets each token's embedding to 0 with probability p,
    in the source and in the target, except the last token of a row. The gradient flows through both
    predictions.

    In a decoder without an encoder the first token of a row is spared too. It sees itself alone, so
    a zero embedding stays zero through all layers, and each RMSNorm multiplies its gradient by
    ε^(−1/2): the gradient overflows.

    Reference: Gao et al., *Bi-SimCut: A Simple Strategy for Boosting Neural Machine Translation*,
    2022.

    Differs from the authors' code: the last *real* token of a row is spared, on whichever side the
    padding is (theirs spares the last position, which in a padded target is padding), and the first
    one of a decoder; the penalty has the denominator of the task loss; dropout masks can be shared
    or off.

    Example:
        >>> from advreg import Clock, HFModelView, Step
        >>> report = SimCut(cut=0.3).step(HFModelView(model), batch, Step(Clock(epoch=0, step=0)))
        >>> bool(report.penalty > 0)
        True
    """

    cut: float = option(
        0.05, "p, probability that a token's embedding is set to 0", check=check_share
    )

    def penalty(self, view: ModelView, batch: Batch, clean: CleanPass, step: Step) -> Penalty:
        causal = view.is_causal()
        cut = Cut({stream: self.draw(mask, causal) for stream, mask in view.masks(batch).items()})
        perturbed = self.beside(clean, cut)
        return self.compared(view, batch, clean.logits, perturbed)

    def draw(self, mask: Tensor, spare_first: bool = False) -> Tensor:
        """The tokens of a stream to cut, (B, T): each with probability p, except the last real one
        of a row.

        Args:
            mask: real tokens.
            spare_first: do not cut the first real token of a row either.
        """
        drawn = uniform_noise(torch.zeros(*mask.shape, 1, device=mask.device), mask)[
            ..., 0
        ]  # in (−1, 1)
        place = mask.cumsum(1)
        spared = place == mask.sum(1, keepdim=True)
        if spare_first:
            spared |= place == 1
        return (drawn < 2 * self.cut - 1) & mask & ~spared
