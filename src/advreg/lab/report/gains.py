"""What each method of a comparison gains over the reference: the one table that answers which
method pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from advreg.lab.report.compare import Results
from advreg.lab.report.labels import (
    NOTHING,
    counted,
    method_name,
    number_text,
    signed,
    spread_text,
    value_text,
)
from advreg.lab.report.page.parts import Bullets, Part
from advreg.lab.report.score_tables import task_title
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Table, markdown
from advreg.records.compare import Choice, CompareRecord, MethodGain

_DROPPED = ("passes", "setting", "time")
"""Columns that a narrow terminal does not show, the first one first."""
_GAP = 3  # characters between two columns

Row = Mapping[str, str]
"""The cells of a row by their columns."""


def gain_tables(record: CompareRecord, found: Results, width: int | None = None) -> list[Table]:
    """The gains over the reference, and the gains on each task where there are several; none where
    the record has no gains, as old ones.

    Args:
        record: of the comparison.
        found: its numbers.
        width: characters of the terminal; columns of least use are left out to fit.
    """
    if not record.gains:
        return []
    by_task = [_task_table(record, found)] if len(found.tasks) > 1 else []
    return [_main_table(record, found, width), *by_task]


def gain_parts(record: CompareRecord, found: Results) -> list[Part]:
    """The conclusion and the tables for a page."""
    sentences = [*([record.conclusion] if record.conclusion else []), *flaws(record)]
    return [Bullets(found.contest.title, sentences), *gain_tables(record, found)]


def gain_markdown(record: CompareRecord, found: Results) -> str:
    """The same as a part of a Markdown page."""
    tables = [f"{each.caption}\n\n{markdown(each)}" for each in gain_tables(record, found)]
    notes = [f"- {flaw}" for flaw in flaws(record)]
    parts = [*([record.conclusion] if record.conclusion else []), *tables, "\n".join(notes)]
    return "".join(f"{part}\n\n" for part in parts if part)


def flaws(record: CompareRecord) -> list[str]:
    """Why methods cannot pay, and why the best model is missing."""
    found = {gain.method: gain.flaw for gain in record.gains if gain.flaw is not None}
    return [f"{method_name(_title(record, method))}: {flaw}" for method, flaw in found.items()]


def _main_table(record: CompareRecord, found: Results, width: int | None) -> Table:
    methods = {_title(record, method): method for method in _methods(record)}
    task = None if len(found.tasks) > 1 else found.tasks[0]
    gains = {gain.method: gain for gain in record.gains if gain.task == task}
    spreads = {label: Spread.of(list(found.by_seed(task, label).values())) for label in methods}
    counts = {spread.count for spread in spreads.values() if spread is not None}
    decimals = found.contest.scale.decimals
    rows = [
        {
            "method": method_name(label),
            "setting": _setting(record, method),
            "score": _score(spreads[label], len(counts) > 1, decimals),
            **_gain_cells(gains.get(method), method == record.reference, decimals),
            "passes": _passes(found, label),
        }
        for label, method in methods.items()
    ]
    columns = _fitting(rows, width)
    seeds = f", {counted(max(counts), 'seed')}" if len(counts) == 1 else ""
    mean = f"mean over {len(found.tasks)} tasks, " if task is None else ""
    rate = record.settings.get("alpha", 0.05)
    caption = (
        f"Gain of each method: {_difference(record, found)}, in points, {mean}"
        f"paired by seed{seeds}. Intervals have {100 * (1 - rate):g} % confidence and allow for "
        "added seeds; verdicts are corrected for the number of methods (Holm). Time and forward "
        f"passes are per training and per step; time is over {method_name(record.reference)}'s."
    )
    return Table(caption, columns, [[row[name] for name in columns] for row in rows])


def _difference(record: CompareRecord, found: Results) -> str:
    """What a gain is: positive gains are better, also where a lower score is."""
    reference = method_name(record.reference)
    lower = found.contest.scale.lower_is_better
    return f"{reference} minus method" if lower else f"method minus {reference}"


def _methods(record: CompareRecord) -> Iterator[str]:
    """The reference, the other methods, and the controls."""
    yield record.reference
    others = dict.fromkeys([gain.method for gain in record.gains])
    yield from (method for method in others if method != record.reference)


def _title(record: CompareRecord, method: str) -> str:
    """The label of a method or a control in its contest."""
    return record.controls.get(method, method)


def _score(spread: Spread | None, with_count: bool, decimals: int) -> str:
    count = f" (n = {spread.count})" if with_count and spread is not None else ""
    return spread_text(spread, decimals=decimals) + count


def _gain_cells(gain: MethodGain | None, is_reference: bool, decimals: int) -> Row:
    """Without a gain, a row is the reference's, or has no run."""
    if gain is None:
        verdict = "reference" if is_reference else NOTHING
        return {"gain": NOTHING, "verdict": verdict, "time": "1.00" if is_reference else NOTHING}
    verdict = gain.verdict or NOTHING
    return {
        "gain": gain_text(gain, decimals),
        "verdict": verdict,
        "time": number_text(gain.time, 2),
    }


def gain_text(gain: MethodGain, decimals: int = 1) -> str:
    """A gain with its interval.

    Example:
        >>> gain_text(MethodGain(method="arch", task=None, seeds=3, mean=1.2, low=-0.4, high=2.8))
        '+1.2 [−0.4, +2.8]'
    """
    if gain.mean is None:
        return NOTHING
    if gain.low is None or gain.high is None:
        return signed(gain.mean, decimals)
    low, high = (signed(each, decimals) for each in (gain.low, gain.high))
    return f"{signed(gain.mean, decimals)} [{low}, {high}]"


def _setting(record: CompareRecord, method: str) -> str:
    """The settings that the tuning chose, the method's own first."""
    if method in record.controls:
        return f"as {method_name(record.reference)}'s"
    chosen = [_chosen(choice) for choice in record.choices if choice.method == method]
    if not chosen or chosen[0] is None:
        return NOTHING
    if any(each != chosen[0] for each in chosen):
        return "differs by task"
    common = record.grid.get("common", {})
    ordered = sorted(chosen[0].items(), key=lambda item: item[0] in common)
    return ", ".join(f"{name} {value_text(value)}" for name, value in ordered) or NOTHING


def _chosen(choice: Choice) -> Mapping[str, object] | None:
    return None if choice.chosen is None else choice.candidates[choice.chosen].settings


def _passes(found: Results, label: str) -> str:
    passes = [run.record.outcome.passes.get("forward") for run in found.contest.labelled(label)]
    known = [each for each in passes if each is not None]
    return number_text(fmean(known) if known else None, 2)


def _fitting(rows: list[dict[str, str]], width: int | None) -> list[str]:
    """The columns that fit the width."""
    columns = list(rows[0])
    for name in _DROPPED:
        widths = [max(len(column), *(len(row[column]) for row in rows)) for column in columns]
        if width is None or sum(widths) + _GAP * len(widths) < width:
            break
        columns.remove(name)
    return columns


def _task_table(record: CompareRecord, found: Results) -> Table:
    """Gains on each task, with their intervals."""
    gains = {(gain.method, gain.task): gain for gain in record.gains}
    rows = [
        [
            method_name(_title(record, method)),
            *(gain_text(gains[method, task], found.scale(task).decimals) for task in found.tasks),
        ]
        for method in _methods(record)
        if method != record.reference
    ]
    caption = (
        f"The same on each task: {_difference(record, found)}, in points. Verdicts "
        "are over all tasks."
    )
    return Table(caption, ["method", *(task_title(found, task) for task in found.tasks)], rows)
