"""Figures computed from rounds: ratios within a round, and the time of a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from advreg.core.schedule import RefreshEvery
from advreg.records.bench import STANDARD, YARDSTICK, Row, Spread, WholeRun


def within_rounds(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio mine / theirs in each round, which cancels a slowdown of the whole round.

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
            row,
            time=Spread.of(row.rounds),
            ratio=Spread.of(within_rounds(row.rounds, rounds.get(row.against, []))),
        )
        for row in rows
    ]


def whole_runs(rows: Sequence[Row], epochs: int) -> list[WholeRun]:
    """Each method's run of ``epochs`` epochs compared with Standard's and SMART's."""
    rounds = {row.name: row.rounds for row in rows}
    standard = rounds.get(STANDARD, [])
    smart = next((row.rounds for row in rows if row.method == "smart"), [])
    found = []
    for row, refreshes, mine in over_a_run(rows, epochs):
        to_standard, to_smart = (
            Spread.of(within_rounds(mine, theirs)) for theirs in (standard, smart)
        )
        found.append(
            WholeRun(
                name=contender(row), refreshes=refreshes, to_standard=to_standard, to_smart=to_smart
            )
        )
    return found


def contender(row: Row) -> str:
    """A row's name without its phase."""
    return row.name.removesuffix(f", {row.phase}")


def over_a_run(
    rows: Sequence[Row], epochs: int, schedule: RefreshEvery | None = None
) -> Iterator[tuple[Row, int, list[float]]]:
    """Each method's row (for ARCH, the reuse row), the refreshes of its run, and the mean time of a
    step, by rounds.

    Steps of a refresh epoch take the time of a measured refresh step, and so on; unmeasured ones
    are omitted.

    Args:
        rows: of one shape.
        epochs: of the run.
        schedule: of ARCH's refreshes, instead of its row's own.
    """
    rounds = {row.name: row.rounds for row in rows}
    for row in rows:
        is_ours = row.against == STANDARD and row.name != YARDSTICK
        if is_ours and row.rounds and row.phase == "always":
            yield row, 0, row.rounds
        if is_ours and row.phase == "reuse":
            due = (schedule or RefreshEvery(row.settings["refresh_every"])).due
            refreshes = sum(map(due, range(epochs)))
            refresh = rounds.get(f"{contender(row)}, refresh", [])
            sweep = rounds.get(f"{contender(row)}, sweep", [])
            if mine := averaged(row.rounds, refresh, sweep, refreshes / epochs):
                yield row, refreshes, mine


def averaged(
    reuse: Sequence[float], refresh: Sequence[float], sweep: Sequence[float], share: float
) -> list[float]:
    """Mean time of ARCH's steps, round by round, when this share of its epochs refreshes, by steps
    or by a sweep.

    Empty if neither was measured.

    Example:
        >>> averaged([1.0], [3.0], [], share=0.5), averaged([1.0], [], [3.0], share=0.5)
        ([2.0], [2.5])
    """
    if refresh:
        return [
            (1 - share) * calm + share * dear for calm, dear in zip(reuse, refresh, strict=False)
        ]
    return [calm + share * extra for calm, extra in zip(reuse, sweep, strict=False)]
