"""The features of a text from a frozen encoder: the vector that a prediction head reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from advreg.hf.survey import to_device
from advreg.hf.view.injection import bare
from advreg.lab.kinds.attention import for_any_shape

_NOT_READ = ("labels",)

Pooling = Literal["head", "mean"]


@for_any_shape()
@torch.no_grad()
def frozen_features(
    model: Any,
    samples: Sequence[dict[str, Any]],
    collator: Callable[[list[dict[str, Any]]], Any],
    batch_size: int = 128,
    advance: Callable[[int], None] | None = None,
    pooling: Pooling = "head",
) -> Tensor:
    """The representation of every sample, in their order, (n, d) float32 on the host; without
    dropout.

    Args:
        model: a model with a head; only its encoder is used.
        samples: token ids, with or without labels.
        collator: makes a batch of samples.
        batch_size: samples at once, grouped by length.
        advance: called with the number of samples done.
        pooling: the representation of a text: the input of the encoder's own head, or the mean of
            its tokens, which suits sentence encoders.
    """
    core = bare(model)
    encoder, device = core.base_model.eval(), next(core.parameters()).device
    order = sorted(range(len(samples)), key=lambda index: len(samples[index]["input_ids"]))
    found: list[Tensor] = [torch.empty(0)] * len(samples)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        batch = collator(
            [{k: v for k, v in samples[index].items() if k not in _NOT_READ} for index in chosen]
        )
        inputs = to_device(dict(batch), device)
        output, mask = encoder(**inputs), inputs["attention_mask"]
        vectors = (
            mean_token(output, mask)
            if pooling == "mean"
            else representation(output, mask, core.config)
        )
        for index, vector in zip(chosen, vectors.float().cpu(), strict=True):
            found[index] = vector
        if advance is not None:
            advance(len(chosen))
    return torch.stack(found)


def mean_token(output: Any, mask: Tensor) -> Tensor:
    """The mean of the real tokens' last states, (B, d)."""
    weights = mask[..., None].to(output.last_hidden_state.dtype)
    mean: Tensor = (output.last_hidden_state * weights).sum(1) / weights.sum(1)
    return mean


def representation(output: Any, mask: Tensor, config: Any) -> Tensor:
    """One vector per sample, (B, d): the pooled one if the encoder has a pooler, else what its own
    head would read.

    That is the first token of an encoder, and the last real one of a decoder, which alone has seen
    the whole text.
    """
    pooled: Tensor | None = getattr(output, "pooler_output", None)
    if pooled is not None:
        return pooled
    states: Tensor = output.last_hidden_state
    if not _reads_forward_only(config):
        return states[:, 0]
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(1)
    return states[torch.arange(len(states), device=states.device), last]


def _reads_forward_only(config: Any) -> bool:
    """Whether the model is a decoder, such as GPT-2 or Llama."""
    causal = {"gpt2", "llama", "qwen2", "qwen3", "mistral", "gpt_neox", "opt", "gemma", "phi"}
    return bool(getattr(config, "is_decoder", False)) or config.model_type in causal
