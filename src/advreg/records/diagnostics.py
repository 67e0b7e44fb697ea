"""State of a method's memory at the end of training: a small file in the folder of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from advreg.records.sealed import load_as, save_as

HEALTH_FILE = "health.json"


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of values in bins of equal width; values outside the range count in the outer bins."""

    stream: str
    low: float
    high: float
    counts: list[int]

    @classmethod
    def of(
        cls, stream: str, values: Sequence[float], low: float, high: float, bins: int
    ) -> Histogram:
        """Count the values.

        Example:
            >>> Histogram.of("tokens", [0.0, 0.1, 0.6, 1.0], 0.0, 1.0, bins=2).counts
            [2, 2]
        """
        counts = [0] * bins
        for value in values:
            place = int((value - low) / (high - low) * bins)
            counts[min(max(place, 0), bins - 1)] += 1
        return cls(stream=stream, low=low, high=high, counts=counts)


@dataclass(frozen=True, kw_only=True)
class TokenNorms:
    """‖δ‖₂ at each token of a cached sample, and the tokens' texts where available."""

    sample: int
    stream: str
    norms: list[float]
    tokens: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class MemoryHealth:
    """Contents of a cache of perturbations.

    Args:
        sizes: ‖δ‖/ε in the norm and scope of the ball, of some cached samples or their tokens.
        written: the number of cached samples last written in each epoch; ``-1``: never written.
        similarity: cosine similarity of some uncached samples to the neighbours they borrow from.
        tokens: the norms of a few cached samples, token by token.
    """

    sizes: list[Histogram]
    written: dict[str, int]
    similarity: list[Histogram]
    tokens: list[TokenNorms]


@dataclass(frozen=True, kw_only=True)
class HealthRecord:
    """The file.

    Args:
        schema, kind: distinguish it from other records.
        peak_bytes: peak memory allocated on the GPU; ``None`` on a CPU.
        memory: of the method; ``None`` if it has none.
    """

    schema: int = 1
    kind: Literal["health"] = "health"
    peak_bytes: int | None = None
    memory: MemoryHealth | None = None

    def save(self, folder: Path) -> None:
        save_as(folder / HEALTH_FILE, self)


def load(folder: Path) -> HealthRecord | None:
    """The record of the run in a folder; ``None`` if there is none."""
    path = folder / HEALTH_FILE
    return load_as(path, HealthRecord) if path.is_file() else None
