"""Saves the GPU synchronisation by which transformers inspects attention masks.

What: within a pass, transformers' checks for padding get their answer from the collator.
Why: a mask without padding is dropped, which allows a faster attention kernel. transformers checks
for that with ``mask.all()`` on the GPU in every pass, three times in an encoder–decoder. The host
waits there for all queued work, and then the GPU waits for the host.
Upstream: https://github.com/huggingface/transformers/pull/43088 (open; generation only).
Remove when: transformers accepts a hint about padding in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from transformers import masking_utils

from advreg.hf.replaced import replaced

PADDED = "padded"
"""Entry of a batch: for each of its masks, whether it hides a position."""

_MASKS = ("attention_mask", "decoder_attention_mask")


def padding_of(batch: Mapping[str, Any]) -> dict[str, bool]:
    """Which token masks of a batch hide a position; computed where the batch is made."""
    masks = {
        name: batch[name]
        for name in _MASKS
        if isinstance(batch.get(name), Tensor) and batch[name].dim() == 2
    }
    return {name: not bool(mask.all()) for name, mask in masks.items()}


@contextmanager
def known_padding(padded: Mapping[str, bool], is_encoder_decoder: bool) -> Iterator[None]:
    """Within, transformers reads no mask to find out whether it hides a position.

    Args:
        padded: the result of :func:`padding_of`. A decoder's mask that is missing hides nothing.
        is_encoder_decoder: whether the model has a decoder with its own mask.
    """
    text = padded.get("attention_mask")
    causal = padded.get("decoder_attention_mask", False) if is_encoder_decoder else text
    answers = {"_ignore_bidirectional_mask_sdpa": text, "_ignore_causal_mask_sdpa": causal}
    functions = vars(masking_utils)
    with ExitStack() as answered:
        for name, is_padded in answers.items():
            if is_padded is not None and name in functions:
                answer = _answering(functions[name], is_padded)
                answered.enter_context(replaced(functions, name, answer))
        yield


def _answering(ignore: Callable[..., bool], is_padded: bool) -> Callable[..., bool]:
    """transformers' check, which keeps a mask with padding and sees no mask otherwise."""

    def answer(padding_mask: Tensor | None, *args: object, **kwargs: object) -> bool:
        return not (is_padded and padding_mask is not None) and ignore(None, *args, **kwargs)

    return answer
