"""From rounds to figures: ratios taken within a round, and the time of a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advreg.bench.record import STANDARD, YARDSTICK, Row, Spread, WholeRun
from advreg.core.schedule import RefreshEvery


def within_rounds(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """mine / theirs, round by round: what slows a whole round down does not show.

    Example:
        >>> within_rounds([2.0, 6.0, 9.0], [1.0, 3.0])
        [2.0, 2.0]
    """
    return [one / other for one, other in zip(mine, theirs, strict=False)]


def finished(rows: Sequence[Row]) -> list[Row]:
    """The rows with their figures."""
    rounds = {row.name: row.rounds for row in rows}
    return [
        replace(
            row, time=Spread.of(row.rounds), ratio=Spread.of(within_rounds(row.rounds, rounds.get(row.against, [])))
        )
        for row in rows
    ]


def whole_runs(rows: Sequence[Row], epochs: int) -> list[WholeRun]:
    """Each method's run of ``epochs`` epochs: a refresh epoch's steps take what a refresh step took, and so on."""
    rounds = {row.name: row.rounds for row in rows}
    standard = rounds.get(STANDARD, [])
    smart = next((row.rounds for row in rows if row.method == "smart"), [])
    found = []
    for row in rows:
        if row.against != STANDARD or row.name == YARDSTICK or row.phase not in ("always", "reuse"):
            continue
        name, refreshes, mine = row.name.removesuffix(", reuse"), 0, row.rounds
        if row.phase == "reuse":
            schedule = RefreshEvery(row.settings["refresh_every"])
            refreshes = sum(schedule.due(epoch) for epoch in range(epochs))
            mine = averaged(
                row.rounds, rounds.get(f"{name}, refresh", []), rounds.get(f"{name}, sweep", []), refreshes / epochs
            )
        if mine:
            to_standard, to_smart = (Spread.of(within_rounds(mine, theirs)) for theirs in (standard, smart))
            found.append(WholeRun(name=name, refreshes=refreshes, to_standard=to_standard, to_smart=to_smart))
    return found


def averaged(reuse: Sequence[float], refresh: Sequence[float], sweep: Sequence[float], share: float) -> list[float]:
    """Mean time of ARCH's steps, round by round, when this share of its epochs refreshes, by steps or by a sweep.

    Nothing if neither was measured.

    Example:
        >>> averaged([1.0], [3.0], [], share=0.5), averaged([1.0], [], [3.0], share=0.5)
        ([2.0], [2.5])
    """
    if refresh:
        return [(1 - share) * calm + share * dear for calm, dear in zip(reuse, refresh, strict=False)]
    return [calm + share * extra for calm, extra in zip(reuse, sweep, strict=False)]
