"""What a report says of scores and cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from advreg.lab.report.compare import STANDARD
from advreg.lab.report.figures import (
    Look,
    Row,
    Rows,
    looks,
    rounded,
    row_of,
)
from advreg.lab.report.groups import Contest
from advreg.lab.report.labels import NOTHING, bytes_text, duration, method_name
from advreg.lab.report.parts import Bullets, Part
from advreg.lab.report.render import (
    Sheet,
    cost_sheet,
    notes,
    score_name,
    score_sheets,
    task_title,
    unit,
)
from advreg.lab.report.statistics import Spread
from advreg.records.compare import seconds_of, wall_seconds


def label_looks(contest: Contest) -> dict[str, Look]:
    """The look of each label of a contest, the same in all its pictures."""
    labels = list(contest.methods)
    return looks(labels, list(contest.methods.values()), [method_name(label) for label in labels])


def score_parts(contest: Contest) -> list[Part]:
    """Tables, a picture for each task, and remarks."""
    sheets = score_sheets(contest.results)
    if (
        contest.has_variants
    ):  # with a row for every variant, differences from one of them say little
        sheets = [sheet for sheet in sheets if " minus each method" not in sheet.caption]
    parts: list[Part] = [sheets[0]]
    for task in contest.results.tasks:
        rows = _score_rows(contest, task)
        if rows:
            told = {"value": "mean", "interval": "95 % interval of the mean", "dots": "seeds"}
            title, about = task_title(contest.results, task), contest.task(task)
            axis = f"{score_name(about)} on {about.scored_on}{unit(contest.results, ', percent')}"
            parts.append(Rows(title=title, x=axis, rows=rows, told=told))
    remarks = [
        note
        for note in notes(contest.results)
        if ": no result: " not in note and ": candidate" not in note
    ]
    return [*parts, *sheets[1:], *([Bullets("Notes", remarks)] if remarks else [])]


def _score_rows(contest: Contest, task: str) -> list[Row]:
    shown, found = label_looks(contest), []
    for label, runs in contest.of(task).items():
        scores = [score for run in runs if (score := contest.score(task, run)) is not None]
        spread = Spread.of(scores)
        if spread is not None:
            found.append(row_of(shown[label], scores, spread))
    return found


def cost_parts(contest: Contest) -> list[Part]:
    """Passes, times and memory; with tuning, where there was any."""
    parts: list[Part] = [_cost_table(contest)]
    figure = _cost_figure(contest)
    if figure.rows:
        parts.append(figure)
    if any(cost.candidates for cost in contest.results.costs):
        parts.append(cost_sheet(contest.results))
    return parts


def _cost_table(contest: Contest) -> Sheet:
    header = [
        "",
        "forward",
        "backward",
        "ms per step",
        "× Standard",
        "training",
        "whole run",
        "cache",
        "GPU memory",
    ]
    rows = []
    for cost in contest.results.costs:
        mine = [run for (_, label, _), run in contest.runs.items() if label == cost.method]
        if not mine:
            continue
        passes = [
            _mean([run.record.outcome.passes.get(kind) for run in mine])
            for kind in ("forward", "backward")
        ]
        step = _mean([run.record.outcome.timing.get("seconds_per_step") for run in mine])
        peaks = [
            run.health.peak_bytes
            for run in mine
            if run.health is not None and run.health.peak_bytes
        ]
        rows.append(
            [
                method_name(cost.method),
                *(_text(each, "{:.2f}") for each in passes),
                _text(None if step is None else 1000 * step, "{:.1f}"),
                _text(cost.relative, "{:.2f}"),
                NOTHING if cost.seconds is None else duration(cost.seconds),
                duration(statistics.fmean(wall_seconds(run.record) for run in mine)),
                bytes_text(max(run.record.outcome.cache_bytes or 0 for run in mine)),
                bytes_text(max(peaks, default=None)),
            ]
        )
    caption = (
        "Means over runs. × Standard: time of the steps, relative to Standard's run of the same "
        "task and seed; whole "
        "run: by the clock, with evaluation and saving."
    )
    return Sheet(caption, header, rows)


def _cost_figure(contest: Contest) -> Rows:
    shown = label_looks(contest)
    plain = {
        (task, seed): run.record
        for (task, label, seed), run in contest.runs.items()
        if label == STANDARD
    }
    rows = []
    for label, look in shown.items():
        ratios = [
            seconds_of(run.record) / seconds_of(plain[task, seed])
            for (task, mine, seed), run in contest.runs.items()
            if mine == label and (task, seed) in plain and seconds_of(plain[task, seed]) > 0
        ]
        cost = next((each for each in contest.results.costs if each.method == label), None)
        if ratios and cost is not None and cost.relative is not None:
            rows.append(Row(look, cost.relative, dots=[rounded(ratio) for ratio in ratios]))
    told = {"value": "mean", "dots": "runs"}
    return Rows(title="Time of training", x="× Standard", rows=rows, bars=True, base=1.0, told=told)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _text(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)
