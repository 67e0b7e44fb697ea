"""When something happens: the clock of a run, and the epochs in which a cache is refreshed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from advreg.core.checks import check_choice, check_share, check_whole

Ramp = Literal["constant", "linear"]


@dataclass(frozen=True)
class Clock:
    """Where a run stands.

    Args:
        epoch: passes over the data that are complete, from zero.
        step: optimizer steps taken, from zero; the micro-batches of one accumulation group share
            it.
        closes_group: does this micro-batch complete its accumulation group?
        planned: optimizer steps of the whole run; ``None`` if unknown.

    Example:
        >>> Clock(epoch=1, step=50, planned=100).progress
        0.5
    """

    epoch: int
    step: int
    closes_group: bool = True
    planned: int | None = None

    @property
    def progress(self) -> float:
        """Steps taken, as a share of the planned ones; at most 1."""
        if self.planned is None:
            raise ValueError(
                "start_at and ramp need the number of planned updates; pass Clock(epoch, step, "
                "planned=...), or train "
                "with AdversarialTrainer"
            )
        return min(1.0, self.step / max(1, self.planned))


@dataclass(frozen=True)
class Onset:
    """When a penalty starts, and how its weight rises from there to the end of the plan.

    Args:
        start_at: share of the planned updates before which the weight is 0.
        ramp: ``"constant"``, or ``"linear"``: the weight λ rises linearly from 0.

    Example:
        >>> half_way = Clock(epoch=1, step=50, planned=100)
        >>> [Onset(ramp=ramp).weight(4.0, half_way) for ramp in ("constant", "linear")]
        [4.0, 2.0]
        >>> Onset(start_at=0.6).weight(4.0, half_way)
        0.0
    """

    start_at: float = 0.0
    ramp: Ramp = "constant"

    def __post_init__(self) -> None:
        check_share("start_at", self.start_at)
        check_choice("ramp", self.ramp, get_args(Ramp))

    def begun(self, clock: Clock) -> bool:
        return self.start_at == 0 or clock.progress >= self.start_at

    def weight(self, weight: float, clock: Clock) -> float:
        """λ at this time, given its value at the end of the plan."""
        if not self.begun(clock):
            return 0.0
        if self.ramp == "constant":
            return weight
        return weight * (clock.progress - self.start_at) / (1 - self.start_at)


@dataclass(frozen=True)
class RefreshEvery:
    """Epoch t refreshes when t % T_c == 0; with T_c = ``None`` only epoch 0 does.

    A memory that is empty in mid-run fills first: every epoch up to ``begin`` refreshes.

    Args:
        epochs: T_c.
        begin: the first epoch that the memory sees from its start.

    Example:
        >>> [t for t in range(40) if RefreshEvery(15).due(t)]
        [0, 15, 30]
        >>> [t for t in range(7, 40) if RefreshEvery(15, 7).due(t)]
        [7, 15, 30]
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
