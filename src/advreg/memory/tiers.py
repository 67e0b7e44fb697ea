"""Where a cache lives: on the device, in host memory, or in a memory-mapped file; and how that is
chosen.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
import torch
from torch import Tensor

Tier = Literal["device", "host", "disk"]
CacheDevice = Literal["auto", "device", "host", "disk"]

DEVICE_SHARE = 0.25
"""Share of a GPU's free memory that a cache may take without a stated budget; the optimizer's state
is allocated later.
"""
HOST_SHARE = 0.5
"""Share of the available host memory that a cache may take."""


@dataclass(frozen=True)
class Place:
    """Where rows are kept.

    Args:
        device: the model's device.
        tier: ``"device"``, ``"host"`` or ``"disk"``.
        folder: where the file of ``"disk"`` lies; by default the system's folder for temporary
            files.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tier: Tier = "device"
    folder: str | None = None

    @property
    def is_near(self) -> bool:
        """Whether the model's device can read the rows in place."""
        return self.tier == "device" or (self.tier == "host" and self.device.type == "cpu")

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros at this place."""
        if self.tier == "disk":
            return mapped_zeros(shape, dtype, self.folder)
        return torch.zeros(
            shape, dtype=dtype, device=self.device if self.tier == "device" else "cpu"
        )


@dataclass(frozen=True)
class Storage:
    """A choice of the place of rows.

    Args:
        kind: a tier, or ``"auto"``: the nearest one with room.
        budget_gb: GB on the device for ``"auto"``; ``None``: a share of what is free.
        folder: of the file of ``"disk"``.
    """

    kind: CacheDevice = "auto"
    budget_gb: float | None = None
    folder: str | None = None

    def place(self, needed: int, device: torch.device) -> Place:
        """The place for this number of bytes."""
        tier: Tier = (
            choose_tier(needed, device_budget(device, self.budget_gb), host_budget())
            if self.kind == "auto"
            else self.kind
        )
        return Place(device, tier, self.folder)


def mapped_zeros(shape: tuple[int, ...], dtype: torch.dtype, folder: str | None) -> Tensor:
    """Zeros in a file that is mapped into memory.

    The file is deleted at once, and its space is freed with the tensor, even if the process is
    killed. The space is reserved before the first write, so that a full disk is an error here and
    not a crash in mid-training.
    """
    count = math.prod(shape)
    where = disk_folder(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=where, prefix="advreg-cache-") as file:
            _reserve(file.fileno(), max(count * dtype.itemsize, 1))
            return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)
    except OSError as error:
        raise OSError(
            f"cannot keep {count * dtype.itemsize / 1e9:.2f} GB of cache in {where} ({error}); "
            "free some space, set cache_folder to another disk, lower cache_fraction, or store it "
            "as cache_dtype='float16'"
        ) from error


def disk_folder(folder: str | None) -> Path:
    """Where a cache on disk goes: a folder that is there, or the system's temporary one."""
    where = Path(folder or tempfile.gettempdir())
    if not where.is_dir():
        raise ValueError(
            f"cache_folder must be a folder that exists, got '{where}'; create it (mkdir -p), or "
            "name another"
        )
    return where


def choose_tier(needed: int, device_budget: float, host_budget: float) -> Tier:
    """The nearest tier with room for ``needed`` bytes."""
    if needed <= device_budget:
        return "device"
    return "host" if needed <= host_budget else "disk"


def device_budget(device: torch.device, stated_gb: float | None = None) -> float:
    """Bytes a cache may take: the stated number, or a share of the free memory."""
    if stated_gb is not None:
        return stated_gb * 1e9
    if device.type == "cuda":
        return DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
    return host_budget()


def host_budget() -> float:
    """Bytes a cache may take in host memory, which the processes that torchrun started on this host
    share.
    """
    return (
        HOST_SHARE
        * float(psutil.virtual_memory().available)
        / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    )


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
