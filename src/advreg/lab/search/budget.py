"""How much a comparison may spend: time, or a number of runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Budget:
    """One of the two.

    Args:
        seconds: of running time, added over all sessions.
        runs: trainings, the tuning runs included.
    """

    seconds: float | None = None
    runs: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A number with a unit of time, or a number of runs.

        Example:
            >>> Budget.parse("2h"), Budget.parse("40 runs")
            (Budget(seconds=7200.0, runs=None), Budget(seconds=None, runs=40))
        """
        found = re.fullmatch(r"([0-9.]+)\s*(s|m|min|h|d|runs?)?", text.strip())
        try:
            number = float(found[1]) if found else 0.0
        except ValueError:
            number = 0.0
        unit = found[2] if found else None
        if number <= 0 or (unit not in _SECONDS and number != int(number)):
            raise ValueError(
                f"budget must be a time (90m, 2h, 1d) or a number of runs (40), got '{text}'"
            )
        if unit in _SECONDS:
            return cls(seconds=number * _SECONDS[unit])
        return cls(runs=int(number))

    def allows(self, seconds: float, runs: int) -> bool:
        """Whether this time and this number of runs stay within the budget."""
        return seconds <= (self.seconds or float("inf")) and runs <= (self.runs or float("inf"))
