"""Attention masks of which the host knows whether they hide anything, so that no pass waits for a
GPU to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor
from transformers import masking_utils

PADDED = "padded"
"""Entry of a batch: for each of its masks, does it hide a position?"""

_MASKS = ("attention_mask", "decoder_attention_mask")

Ignore = Callable[..., Any]


def padding_of(batch: Mapping[str, Any]) -> dict[str, bool]:
    """Which masks of a batch, where it is made, hide a position; what is no mask of tokens is left
    out.
    """
    masks = {
        name: batch[name]
        for name in _MASKS
        if isinstance(batch.get(name), Tensor) and batch[name].dim() == 2
    }
    return {name: not bool(mask.all()) for name, mask in masks.items()}


@contextmanager
def known_padding(padded: Mapping[str, bool], is_encoder_decoder: bool) -> Iterator[None]:
    """Inside, transformers need not look into masks.

    A mask that hides nothing is not used, which lets attention take a faster kernel. To know,
    transformers asks the GPU in every pass, three times for an encoder–decoder, and the host waits
    until all that was queued before is done; then the GPU waits for the host. Here the answer is
    the same, but comes from where the batch was made.

    Args:
        padded: what :func:`padding_of` said of the batch. A decoder's mask that is not in it hides
            nothing.
        is_encoder_decoder: has the model a decoder with a mask of its own?
    """
    answers = {
        "_ignore_bidirectional_mask_sdpa": padded.get("attention_mask"),
        "_ignore_causal_mask_sdpa": padded.get("decoder_attention_mask", False)
        if is_encoder_decoder
        else padded.get("attention_mask"),
    }
    known = {
        name: answer
        for name, answer in answers.items()
        if answer is not None and hasattr(masking_utils, name)
    }
    before = {name: getattr(masking_utils, name) for name in known}
    for name, is_padded in known.items():
        setattr(masking_utils, name, _answering(before[name], is_padded))
    try:
        yield
    finally:
        for name, ignore in before.items():
            setattr(masking_utils, name, ignore)


def _answering(ignore: Ignore, is_padded: bool) -> Ignore:
    """May a mask be ignored? Not if it hides something; otherwise what holds where there is
    none.
    """

    @wraps(ignore)
    def answer(padding_mask: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        return not (is_padded and padding_mask is not None) and ignore(None, *args, **kwargs)

    return answer
