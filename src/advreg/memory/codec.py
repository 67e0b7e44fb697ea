"""How a row of a perturbation is stored: as it is, in half precision, or as small integers with a
scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

CacheDtype = Literal["float32", "float16", "bfloat16", "int8", "int4"]
Parts = dict[str, Tensor]  # tensors that hold one entry per row
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # what one row takes in each part


class Codec(Protocol):
    """Rows (..., D) of floats to parts that are stored, and back. Parts of zeros decode to
    zeros.
    """

    def layout(self) -> Layout:
        """Shape and dtype of one row in each part."""

    def encode(self, rows: Tensor) -> Parts: ...

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True)
class Floats:
    """Rows as they are, rounded to a floating-point dtype."""

    width: int
    dtype: torch.dtype

    def layout(self) -> Layout:
        return {"rows": ((self.width,), self.dtype)}

    def encode(self, rows: Tensor) -> Parts:
        return {"rows": rows.to(self.dtype)}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        return parts["rows"].to(dtype)


@dataclass(frozen=True)
class Integers:
    """x ≈ s·q with whole q in [−m, m] and s = max|x| / m, one scale per row; |x − s·q| ≤ s/2.

    m is 127 for 8 bits and 7 for 4 bits; two 4-bit numbers share a byte.
    """

    width: int
    bits: Literal[4, 8]

    @property
    def most(self) -> int:
        return int(2 ** (self.bits - 1)) - 1

    def layout(self) -> Layout:
        stored = (
            (self.width, torch.int8) if self.bits == 8 else ((self.width + 1) // 2, torch.uint8)
        )
        return {"rows": ((stored[0],), stored[1]), "scales": ((), torch.float32)}

    def encode(self, rows: Tensor) -> Parts:
        rows = rows.float()
        scales = rows.abs().amax(-1) / self.most
        safe = torch.where(scales > 0, scales, 1.0)[
            ..., None
        ]  # a row of zeros, or one that underflows
        whole = (rows / safe).round().clamp(-self.most, self.most)
        return {"rows": whole.to(torch.int8) if self.bits == 8 else _pack(whole), "scales": scales}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        whole = parts["rows"] if self.bits == 8 else _unpack(parts["rows"])[..., : self.width]
        return whole.to(dtype) * parts["scales"].to(dtype)[..., None]


def codec_for(dtype: CacheDtype, width: int) -> Codec:
    """The codec of this name for rows of this width."""
    if dtype in ("int8", "int4"):
        return Integers(width, 8 if dtype == "int8" else 4)
    return Floats(width, getattr(torch, dtype))


def bytes_per_row(codec: Codec) -> int:
    """What one row takes."""
    return sum(
        torch.Size(shape).numel() * dtype.itemsize for shape, dtype in codec.layout().values()
    )


def _pack(whole: Tensor) -> Tensor:
    """Pairs of numbers in [−7, 7] to a byte each: (..., D) → (..., ⌈D/2⌉)."""
    shifted = F.pad((whole + 8).to(torch.uint8), (0, whole.shape[-1] % 2))
    return shifted[..., 0::2] | (shifted[..., 1::2] << 4)


def _unpack(packed: Tensor) -> Tensor:
    halves = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return halves.to(torch.int8) - 8
