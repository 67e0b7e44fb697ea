"""Rebuilds the output of TRL's fused head from logits, which a penalty needs.

What: returns the same per-token fields as TRL's patched forward pass.
Why: ``SFTTrainer`` replaces a model's forward pass by one that computes the loss without logits,
and reads its fields for metrics. A method that compares predictions needs the plain forward pass.
Upstream: https://github.com/huggingface/trl/pull/5575 (TRL 1.16 has the fields used here).
Remove when: TRL's fused head can return logits on request.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils.generic import ModelOutput

from advreg.core.divergence import widen
from advreg.hf.view.head import IGNORED, Head

FUSED_HEAD = "fused_lm_head"
"""The argument of TRL's patched forward pass that switches the fused head on."""
SKIP_LOGITS = "skip_logits"
"""The argument of liger-kernel's patched forward passes that leaves the logits out."""
_ROWS_AT_ONCE = 2048  # positions per chunk of the entropy


def fused_head_output(
    logits: Tensor, labels: Tensor, head: Head, output: ModelOutput
) -> ModelOutput:
    """The output of TRL's patched forward pass; fields per token are zero without a label.

    Args:
        logits: of the clean copy, (B, T, V).
        labels: as the collator made them, (B, T).
        head: of the model.
        output: of the plain forward pass.
    """
    from trl.trainer.utils import FusedCausalLMOutput

    logits, labels = logits[:, :-1], head.aligned(logits, labels)[:, :-1]
    mask = labels != IGNORED
    losses = F.cross_entropy(
        widen(logits).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    log_probs = -losses.view(labels.shape)
    entropy, is_top1 = _measures(logits[mask].detach(), labels[mask])
    return FusedCausalLMOutput(
        loss=-log_probs.sum() / mask.sum().clamp(min=1),
        log_probs=log_probs,
        entropy=torch.zeros_like(log_probs).masked_scatter(mask, entropy),
        is_top1=torch.zeros_like(mask).masked_scatter(mask, is_top1),
        label_mask=mask,
        aux_loss=getattr(output, "aux_loss", None),
    )


@torch.no_grad()
def _measures(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of each prediction, (N,), and whether its most likely entry is the label."""
    entropies = [torch.zeros(0, device=logits.device)]
    for rows in torch.split(logits, _ROWS_AT_ONCE):
        log_p = F.log_softmax(widen(rows), dim=-1)
        entropies.append(-(log_p.exp() * log_p).sum(-1).float())
    return torch.cat(entropies), logits.argmax(-1) == labels
