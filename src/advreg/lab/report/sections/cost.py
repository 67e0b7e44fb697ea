"""Cost: passes, times and memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from advreg.lab.report.compare import Cost, Results
from advreg.lab.report.gather import Run
from advreg.lab.report.labels import bytes_text, duration, method_name, number_text
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import Row, Rows
from advreg.lab.report.score_tables import cost_table
from advreg.lab.report.sections.common import looks_of
from advreg.lab.report.statistics import mean_of
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
    known = [cost for cost in found.costs if cost.seconds is not None]
    rows = [_row(cost, found.contest.labelled(cost.method)) for cost in known]
    parts: list[Part] = [Table(_CAPTION, _HEADER, rows), *_figure(found)]
    if any(cost.candidates for cost in found.costs):
        parts.append(cost_table(found))
    return parts


def _row(cost: Cost, runs: Sequence[Run]) -> list[str]:
    step = mean_of(run.record.outcome.timing.get("seconds_per_step") for run in runs)
    return [
        method_name(cost.method),
        _passes(runs, "forward"),
        _passes(runs, "backward"),
        number_text(None if step is None else 1000 * step, 1),
        number_text(cost.relative, 2),
        duration(cost.seconds or 0.0),
        duration(statistics.fmean(wall_seconds(run.record) for run in runs)),
        bytes_text(max(run.record.outcome.cache_bytes or 0 for run in runs)),
        bytes_text(max(run.peak_bytes for run in runs)),
    ]


def _passes(runs: Sequence[Run], kind: str) -> str:
    return number_text(mean_of(run.record.outcome.passes.get(kind) for run in runs), 2)


def _figure(found: Results) -> list[Rows]:
    shown = looks_of(found)
    rows = [
        Row(shown[cost.method], cost.relative, dots=cost.ratios)
        for cost in found.costs
        if cost.relative is not None
    ]
    return [Rows(title="Time of training", x="× Standard", marks=rows, zero=True)] if rows else []
