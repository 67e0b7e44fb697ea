"""Cost: passes, times and memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from advreg.lab.report.compare import Cost, Results
from advreg.lab.report.gather import Run
from advreg.lab.report.labels import NOTHING, bytes_text, duration, method_name, number_text
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import Row, Rows
from advreg.lab.report.score_tables import cost_table
from advreg.lab.report.sections.common import looks_of
from advreg.lab.report.tables import Table
from advreg.records.compare import wall_seconds

_HEADER = (
    *("", "forward", "backward", "ms per step", "× Standard", "training", "whole run", "cache"),
    "GPU memory",
)
_CAPTION = (
    "Means over runs. × Standard: time of the steps, relative to Standard's run of the same task "
    "and seed; whole run: by the clock, with evaluation and saving."
)


def cost_parts(found: Results) -> list[Part]:
    """The cost of each label, with its tuning where there was any."""
    rows = [
        _row(cost, runs) for cost in found.costs if (runs := found.contest.labelled(cost.method))
    ]
    parts: list[Part] = [Table(_CAPTION, _HEADER, rows), *_figure(found)]
    if any(cost.candidates for cost in found.costs):
        parts.append(cost_table(found))
    return parts


def _row(cost: Cost, runs: list[Run]) -> list[str]:
    outcomes = [run.record.outcome for run in runs]
    step = _mean([outcome.timing.get("seconds_per_step") for outcome in outcomes])
    return [
        method_name(cost.method),
        number_text(_mean([outcome.passes.get("forward") for outcome in outcomes]), 2),
        number_text(_mean([outcome.passes.get("backward") for outcome in outcomes]), 2),
        number_text(None if step is None else 1000 * step, 1),
        number_text(cost.relative, 2),
        NOTHING if cost.seconds is None else duration(cost.seconds),
        duration(statistics.fmean(wall_seconds(run.record) for run in runs)),
        bytes_text(_most([outcome.cache_bytes for outcome in outcomes])),
        bytes_text(_most([run.health.peak_bytes if run.health else None for run in runs])),
    ]


def _most(counts: Sequence[int | None]) -> int:
    return max(count or 0 for count in counts)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _figure(found: Results) -> list[Rows]:
    shown = looks_of(found)
    rows = [
        Row(shown[cost.method], cost.relative, dots=cost.ratios)
        for cost in found.costs
        if cost.relative is not None
    ]
    figure = Rows(title="Time of training", x="× Standard", rows=rows, bars=True, base=1.0)
    return [figure] if rows else []
