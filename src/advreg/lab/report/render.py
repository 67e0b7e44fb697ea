"""A comparison's numbers as tables: for the terminal, for a Markdown page, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.table import Table
from rich.text import Text

from advreg.lab.report.compare import STANDARD, Cell, Results
from advreg.lab.report.labels import (
    NOTHING,
    method_name,
    metric_name,
    over_seeds,
    task_name,
    value_text,
)
from advreg.lab.report.statistics import Spread
from advreg.records.compare import ComparedTask, is_share

_REASON_LENGTH = 160


@dataclass(frozen=True)
class Sheet:
    """One table, as text: a caption, a header, rows, and which cells (row, column) are bold."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = field(default_factory=frozenset)


def sheets(results: Results) -> list[Sheet]:
    """All tables that have something to show."""
    return [*score_sheets(results), cost_sheet(results)]


def score_sheets(results: Results) -> list[Sheet]:
    """The tables of scores."""
    return [
        sheet for sheet in (_scores(results), _metrics(results), _differences(results)) if sheet
    ]


def _scores(results: Results) -> Sheet:
    seeds = len({entry.seed for entry in results.record.runs})
    cells = [[results.cells[task, method] for method in results.methods] for task in results.tasks]
    columns = [[cell.main for cell in column] for column in cells]
    shown = [
        [spread_text(cell.main, cell.asked, cell.failed) for cell in column] for column in cells
    ]
    header = ["", *(task_title(results, task) for task in results.tasks)]
    if len(results.tasks) > 1:
        columns.append([results.averages[method] for method in results.methods])
        failed = [any(cell.failed for cell in row) for row in zip(*cells, strict=True)]
        shown.append(
            [
                spread_text(average, seeds, bad)
                for average, bad in zip(columns[-1], failed, strict=True)
            ]
        )
        header.append("Average")
    bold = frozenset(
        (row, number + 1) for number, column in enumerate(columns) for row in best_places(column)
    )
    rows = [
        [method_name(method), *(column[row] for column in shown)]
        for row, method in enumerate(results.methods)
    ]
    sets = " or ".join(dict.fromkeys(task.scored_on for task in results.record.tasks))
    score = " or ".join(dict.fromkeys(score_name(task) for task in results.record.tasks))
    scores = f"{score[0].upper()}{score[1:]} on {sets}{unit(results, ' in percent')}"
    caption = f"{scores}, {over_seeds(seeds)}; {_about(results)}. The best are bold."
    return Sheet(caption, header, rows, bold)


def _metrics(results: Results) -> Sheet | None:
    """Each metric by itself, where a task has more than the one its score is."""
    entries = [
        (task, name)
        for task in results.tasks
        for name in dict.fromkeys(
            name for method in results.methods for name in results.cells[task, method].metrics
        )
    ]
    if len(entries) == len(results.tasks):
        return None
    table = [
        [results.cells[task, method].metrics.get(name) for method in results.methods]
        for task, name in entries
    ]
    rows = [
        [
            f"{task_title(results, task)}, {metric_name(name)}",
            *(spread_text(spread, spread.count if spread else 0) for spread in spreads),
        ]
        for (task, name), spreads in zip(entries, table, strict=True)
    ]
    bold = frozenset(
        (row, column + 1) for row, spreads in enumerate(table) for column in best_places(spreads)
    )
    return Sheet(
        f"Each metric{unit(results, ', in percent')}.",
        ["", *map(method_name, results.methods)],
        rows,
        bold,
    )


def _differences(results: Results) -> Sheet | None:
    baselines = list(dict.fromkeys(difference.baseline for difference in results.differences))
    if not baselines:
        return None
    columns: list[str | None] = [*results.tasks, *([None] if len(results.tasks) > 1 else [])]
    by_place = {
        (difference.baseline, difference.task): difference for difference in results.differences
    }
    counts = {entry.spread.count for entry in results.differences if entry.spread is not None}
    rows = [
        [
            method_name(baseline),
            *(
                difference_text(by_place[baseline, task].spread, with_count=len(counts) > 1)
                for task in columns
            ),
        ]
        for baseline in baselines
    ]
    if counts == {1}:
        how = "n = 1: no interval"
    else:
        count = f"n = {counts.pop()}" if len(counts) == 1 else "n in brackets"
        how = (
            f"paired by seed, with the 95 % confidence interval of the mean (Student's t, {count})"
        )
    header = ["", *("Average" if task is None else task_title(results, task) for task in columns)]
    return Sheet(
        f"{method_name(results.record.reference)} minus each method, in points; {how}.",
        header,
        rows,
    )


def cost_sheet(results: Results) -> Sheet:
    tuned = any(cost.candidates for cost in results.costs)
    rows = []
    for cost in results.costs:
        row = [
            method_name(cost.method),
            number_text(cost.seconds, 1),
            number_text(cost.relative, 2),
        ]
        if tuned:
            row += [str(cost.candidates), number_text(cost.tuning_seconds, 1)]
            row.append(number_text(cost.relative_with_tuning, 2))
        rows.append(row)
    header = ["", "s per run", "× Standard"]
    caption = (
        "Time of training steps: per run, and relative to Standard's with the same task and seed"
    )
    if tuned:
        header += ["candidates per task", "s of tuning", "× Standard with tuning"]
        caption += "; with tuning: all that was trained for a method"
    return Sheet(f"{caption}. Runs shared the machine.", header, rows)


# ---- text


def notes(results: Results) -> list[str]:
    """What a reader must know beside the numbers: failures, and what is not on equal terms."""
    found = list(results.record.notes)
    if results.record.status != "finished":
        found.append(
            f"the comparison is {results.record.status}: numbers are those of the runs that "
            "finished"
        )
    alike: dict[str, list[str]] = {}
    for failure in results.failures:
        kind = "candidate failed, and counts as the worst" if failure.tuning else "no result"
        alike.setdefault(f"{kind}: {shortened(failure.reason)}", []).append(failure.name)
    return found + [f"{', '.join(names)}: {why}" for why, names in alike.items()]


def shortened(reason: str) -> str:
    """A reason on one line, cut where it is too long for a table's notes."""
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 1] + "…"


def chosen(results: Results) -> list[str]:
    """The settings that the tuning chose, a line for each task and method."""
    lines = []
    for choice in results.record.choices:
        if choice.chosen is not None:
            best = choice.candidates[choice.chosen]
            settings = ", ".join(
                f"{name} {value_text(value)}" for name, value in best.settings.items()
            )
            lines.append(
                f"{choice.task}/{choice.method}: {settings} (held-out score "
                f"{number_text(best.score, 1)}, best of "
                f"{len(choice.candidates)} of {choice.grid_size} points)"
            )
    return lines


def to_markdown(results: Results) -> str:
    """A part of a page: tables, what was chosen, and notes."""
    parts = [f"{sheet.caption}\n\n{markdown_table(sheet)}" for sheet in sheets(results)]
    for title, lines in (
        ("Chosen on held-out training data:", chosen(results)),
        ("Notes:", notes(results)),
    ):
        if lines:
            parts.append(f"{title}\n\n" + "\n".join(f"- {_escaped(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def markdown_table(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(_escaped, cells))} |"

    marked = [
        [
            f"**{cell}**" if (row, column) in sheet.bold else cell
            for column, cell in enumerate(cells)
        ]
        for row, cells in enumerate(sheet.rows)
    ]
    rule = "|".join(["---", *("---:" for _ in sheet.header[1:])])
    return "\n".join([line(sheet.header), f"|{rule}|", *map(line, marked)])


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def to_rich(sheet: Sheet) -> Table:
    """The table for a terminal, without its caption."""
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(sheet.header):
        table.add_column(Text(name), justify="right" if number else "left")
    for row, cells in enumerate(sheet.rows):
        table.add_row(
            *(
                Text(text, "bold" if (row, column) in sheet.bold else "")
                for column, text in enumerate(cells)
            )
        )
    return table


def to_csv(results: Results) -> str:
    """Every number in full, a line for each: scores, differences, times."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["kind", "task", "method", "metric", "against", "mean", "sd", "low", "high", "n"]
    )
    writer.writerows(_csv_rows(results))
    return out.getvalue()


def _csv_rows(results: Results) -> Iterator[list[object]]:
    for (task, method), cell in results.cells.items():
        for name, spread in _named(cell):
            yield [
                "score",
                task,
                method,
                name,
                "",
                spread.mean,
                spread.deviation,
                "",
                "",
                spread.count,
            ]
    for method, average in results.averages.items():
        if average is not None and len(results.tasks) > 1:
            yield [
                "score",
                "average",
                method,
                "main",
                "",
                average.mean,
                average.deviation,
                "",
                "",
                average.count,
            ]
    for entry in results.differences:
        if entry.spread is not None and (entry.task is not None or len(results.tasks) > 1):
            low, high = entry.spread.interval() or ("", "")
            names = [entry.task or "average", results.record.reference, "main", entry.baseline]
            yield [
                "difference",
                *names,
                entry.spread.mean,
                entry.spread.deviation,
                low,
                high,
                entry.spread.count,
            ]
    for cost in results.costs:
        figures = {
            "seconds_per_run": ("", cost.seconds),
            "relative": (STANDARD, cost.relative),
            "tuning_seconds": ("", cost.tuning_seconds),
            "relative_with_tuning": (STANDARD, cost.relative_with_tuning),
        }
        for name, (against, value) in figures.items():
            yield ["time", "", cost.method, name, against, value, "", "", "", ""]


def _named(cell: Cell) -> Iterator[tuple[str, Spread]]:
    if cell.main is not None:
        yield "main", cell.main
    yield from cell.metrics.items()


def best_places(column: Sequence[Spread | None]) -> list[int]:
    """Places of the highest mean, as it is shown: what looks equal is equally good."""
    means = [None if spread is None else round(spread.mean, 1) for spread in column]
    best = max((mean for mean in means if mean is not None), default=None)
    found = [place for place, mean in enumerate(means) if mean is not None and mean == best]
    return found if len(means) > 1 else []


def spread_text(spread: Spread | None, asked: int, failed: bool = False) -> str:
    """Mean ± deviation with one decimal; how many seeds, if some are missing; of runs still to come
    nothing.

    Example:
        >>> spread_text(Spread(71.24, 0.55, 3), 3), spread_text(Spread(71.24, None, 1), 3)
        ('71.2 ± 0.6', '71.2 (1 of 3)')
        >>> spread_text(None, 3), spread_text(None, 3, failed=True)
        ('–', 'failed')
    """
    if spread is None:
        return "failed" if failed else NOTHING
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.1f}"
    missing = "" if spread.count >= asked else f" ({spread.count} of {asked})"
    return f"{spread.mean:.1f}{deviation}{missing}"


def difference_text(spread: Spread | None, decimals: int = 1, with_count: bool = False) -> str:
    """The mean of a difference and its 95 % interval, if it has one.

    Example:
        >>> difference_text(Spread(0.5, 0.2, 3))
        '+0.5 [0.0, +1.0]'
        >>> difference_text(Spread(-0.25, None, 1), 2, with_count=True)
        '−0.25 (n=1)'
    """
    if spread is None:
        return NOTHING
    mean, *reach = (_signed(value, decimals) for value in (spread.mean, *(spread.interval() or ())))
    return (
        mean
        + (f" [{', '.join(reach)}]" if reach else "")
        + (f" (n={spread.count})" if with_count else "")
    )


def _signed(value: float, decimals: int = 1) -> str:
    """With its sign, and a minus that is as wide as the plus.

    Example:
        >>> _signed(0.04), _signed(-1.25), _signed(2.0, 2)
        ('0.0', '−1.2', '+2.00')
    """
    rounded = round(value, decimals)
    return f"{rounded:+.{decimals}f}".replace("-", "−") if rounded else f"{0:.{decimals}f}"


def number_text(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:.{decimals}f}"


def task_title(results: Results, name: str) -> str:
    """One of the tasks of a comparison as people write it, or the title of its data."""
    (task,) = (task for task in results.record.tasks if task.name == name)
    return task_name(task.name, task.title)


def score_name(task: ComparedTask) -> str:
    """What the one number of a task is called: BLEU has a name, a mean of shares is a score."""
    return "score" if is_percentage(task) else " and ".join(map(metric_name, task.main_metrics))


def is_percentage(task: ComparedTask) -> bool:
    """Is the one number of a task a percentage?"""
    return all(map(is_share, task.main_metrics))


def unit(results: Results, percent: str) -> str:
    """``percent`` where all numbers of a comparison are percentages, else nothing."""
    return percent if all(map(is_percentage, results.record.tasks)) else ""


def _about(results: Results) -> str:
    model = str(results.record.settings.get("model", "")).rpartition("/")[2]
    tried = [cost.candidates for cost in results.costs]
    most = max(tried, default=0)
    if not results.record.search:  # not a comparison: nobody knows what was tried before
        return f"model {model}"
    tuning = (
        f"best of {'' if min(tried, default=0) == most else 'up to '}{most} candidates"
        if most
        else "no tuning"
    )
    return f"model {model}, {tuning}"
