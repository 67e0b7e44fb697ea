"""Memory of a training on a CPU."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_LARGEST_KEPT = 2**30
_NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Let the tensors of a step on a CPU use the memory of the last step's; is it so from now on?

    glibc has a block of more than 32 MiB mapped by the system and unmapped when it is freed, and
    returns the end of its heap too. Logits over a vocabulary are such blocks, and the next step
    finds all their pages missing: a small translation model spent a fifth of its time on that, and
    a third with R3F. Here blocks of up to 1 GiB come from a heap that is kept until the process
    ends, which took up to a third more memory.

    Nothing is done where there is a GPU, another libc, or an environment that says how to allocate
    (``MALLOC_…_``, ``GLIBC_TUNABLES``).
    """
    is_told = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") and name.endswith("_") for name in os.environ
    )
    if is_told or torch.cuda.is_available():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc; the last on Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
