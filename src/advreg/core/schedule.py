"""When something happens: the clock of a run, and the epochs in which a cache is refreshed."""

from __future__ import annotations

from dataclasses import dataclass

from advreg.core.checks import check_whole


@dataclass(frozen=True)
class Clock:
    """Where a run stands.

    Args:
        epoch: passes over the data that are complete, from zero.
        step: optimizer steps taken, from zero; the micro-batches of one accumulation group share it.
        closes_group: does this micro-batch complete its accumulation group?
    """

    epoch: int
    step: int
    closes_group: bool = True


@dataclass(frozen=True)
class RefreshEvery:
    """Epoch t refreshes when t % T_c == 0; with T_c = ``None`` only epoch 0 does.

    A memory that is empty in mid-run fills first: every epoch up to ``begin`` refreshes.

    Args:
        epochs: T_c.
        begin: the first epoch that the memory sees from its start.

    Example:
        >>> [t for t in range(40) if RefreshEvery(15).due(t)], [t for t in range(7, 40) if RefreshEvery(15, 7).due(t)]
        ([0, 15, 30], [7, 15, 30])
    """

    epochs: int | None
    begin: int = 0

    def __post_init__(self) -> None:
        if self.epochs is not None:
            check_whole("refresh_every", self.epochs, least=1, otherwise=", or None (once)")

    def due(self, epoch: int) -> bool:
        return self.last(epoch) == epoch

    def last(self, epoch: int) -> int:
        """The latest epoch up to this one that refreshed.

        Example:
            >>> RefreshEvery(15).last(17), RefreshEvery(None).last(17)
            (15, 0)
        """
        regular = 0 if self.epochs is None else epoch - epoch % self.epochs
        return max(regular, min(epoch, self.begin))
