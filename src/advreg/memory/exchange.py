"""Exchanges between processes that train together. Every process must call, in the same order."""

from __future__ import annotations

import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor


def gathered(rows: Tensor, world: int) -> list[Tensor]:
    """The rows of every process, in the order of the processes; each may have as many as it likes.

    Args:
        rows: this process's, (a, …), on a device that the processes can exchange from.
        world: the number of processes; with one nothing is exchanged.
    """
    if world == 1:
        return [rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
    distributed.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    sizes = [int(count) for count in counts]
    most = max(sizes)
    parts = [rows.new_empty(most, *rows.shape[1:]) for _ in range(world)]
    distributed.all_gather(parts, _lengthened(rows, most))
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def summed(value: int, device: torch.device, world: int) -> int:
    """The sum of every process's number modulo 2⁶⁴."""
    signed = (value + 2**63) % 2**64 - 2**63
    total = torch.tensor([signed], dtype=torch.int64, device=device)
    return int(torch.cat(gathered(total, world)).sum()) % 2**64


def _lengthened(rows: Tensor, size: int) -> Tensor:
    """Padded with rows of zeros: an exchange needs the same number from each process."""
    return F.pad(rows.contiguous(), (*[0] * (2 * (rows.dim() - 1)), 0, size - len(rows)))
