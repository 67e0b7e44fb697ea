"""Which samples belong to which of the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from advreg.core.checks import check_whole


@dataclass(frozen=True)
class Shard:
    """The samples of one process: those whose id leaves the remainder ``rank`` when divided by
    ``world``.

    They are the same in every epoch, so a process needs no other process's memory of samples. The
    shards of 2k processes are halves of the shards of k.

    Args:
        size: n, the number of all samples.
        rank, world: this process, and how many there are.

    Example:
        >>> shard = Shard(size=8, rank=1, world=3)
        >>> list(shard.ids), len(shard)
        ([1, 4, 7], 3)
    """

    size: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=0)
        check_whole("world", self.world, least=1)
        if not 0 <= self.rank < self.world:
            raise ValueError(
                f"rank must be at least 0 and below world ({self.world}), got {self.rank}"
            )

    @property
    def ids(self) -> range:
        """The samples' ids, in the order of their rows."""
        return range(self.rank, self.size, self.world)

    def __len__(self) -> int:
        return len(self.ids)

    def owns(self, ids: Tensor) -> Tensor:
        """Which of these ids are samples of this process."""
        inside = (ids >= 0) & (ids < self.size)
        return inside if self.world == 1 else inside & (ids % self.world == self.rank)

    def rows(self, ids: Tensor) -> Tensor:
        """Where each of its samples stands among its samples, counted from zero."""
        return ids if self.world == 1 else ids.div(self.world, rounding_mode="floor")

    def ids_at(self, rows: Tensor) -> Tensor:
        """The ids of the samples that stand there."""
        return rows if self.world == 1 else rows * self.world + self.rank
