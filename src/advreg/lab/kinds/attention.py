"""Attention over batches of many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def for_any_shape() -> Iterator[None]:
    """Attention without cuDNN's kernel; also a decorator.

    On Hopper and Blackwell GPUs PyTorch prefers cuDNN's kernel, which makes a new plan for every
    shape of a batch. With padded batches of text, almost every batch of the first epoch waits for a
    plan, and so does every step of a beam search: on an H200 (torch 2.11) the first batches of a
    translation model took 0.22 s each, later ones, of shapes seen before, 0.04 s. The other kernels
    need no plan.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
