"""The tables of a comparison, its notes, and both as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from advreg.lab.report.compare import Results
from advreg.lab.report.groups import STANDARD
from advreg.lab.report.labels import (
    difference_text,
    is_percentage,
    method_name,
    metric_name,
    number_text,
    over_seeds,
    score_name,
    shortened,
    spread_text,
    task_name,
    value_text,
)
from advreg.lab.report.tables import Cell, Table, best_cells, csv_text, escape_markdown, markdown


def tables(found: Results) -> list[Table]:
    """All tables that have something to show."""
    return [*score_tables(found), cost_table(found)]


def score_tables(found: Results) -> list[Table]:
    """The tables of scores."""
    made = _scores(found), _metrics(found), _differences(found)
    return [table for table in made if table is not None]


def _scores(found: Results) -> Table:
    contest = found.contest
    seeds = len(contest.seeds)
    columns = []
    for task in found.tasks:
        cells = [found.cells[task, method] for method in found.methods]
        texts = [spread_text(cell.main, cell.asked, cell.failed) for cell in cells]
        columns.append(best_cells(texts, [cell.main for cell in cells]))
    header = ["", *(task_title(found, task) for task in found.tasks)]
    if len(found.tasks) > 1:
        columns.append(_average_column(found, seeds))
        header.append("Average")
    names = [method_name(method) for method in found.methods]
    sets = " or ".join(dict.fromkeys(task.scored_on for task in contest.tasks))
    score = " or ".join(dict.fromkeys(map(score_name, contest.tasks)))
    caption = (
        f"{score[0].upper()}{score[1:]} on {sets}{unit(found, ' in percent')}, "
        f"{over_seeds(seeds)}; {contest.terms}. The best are bold."
    )
    return Table(caption, header, _rows(names, columns))


def _average_column(found: Results, seeds: int) -> list[Cell]:
    averages = list(found.averages.values())
    failed = [
        any(found.cells[task, method].failed for task in found.tasks) for method in found.methods
    ]
    texts = [spread_text(each, seeds, bad) for each, bad in zip(averages, failed, strict=True)]
    return best_cells(texts, averages)


def _rows(names: Sequence[str], columns: Iterable[Sequence[Cell]]) -> list[list[Cell | str]]:
    return [list(row) for row in zip(names, *columns, strict=True)]


def _metrics(found: Results) -> Table | None:
    """Each metric by itself, where a task has more than the metric of its score."""
    rows: list[list[Cell | str]] = []
    for task in found.tasks:
        cells = [found.cells[task, method] for method in found.methods]
        for name in dict.fromkeys(name for cell in cells for name in cell.metrics):
            spreads = [cell.metrics.get(name) for cell in cells]
            title = f"{task_title(found, task)}, {metric_name(name)}"
            rows.append([title, *best_cells(list(map(spread_text, spreads)), spreads)])
    if len(rows) == len(found.tasks):
        return None
    caption = f"Each metric{unit(found, ', in percent')}."
    return Table(caption, ["", *map(method_name, found.methods)], rows)


def _differences(found: Results) -> Table | None:
    shown = [each for each in found.differences if each.task is not None or len(found.tasks) > 1]
    compared = found.contest.compared
    if not shown or (compared is not None and compared.gains):  # which have better intervals
        return None
    counts = {each.spread.count for each in shown if each.spread is not None}
    rows: dict[str, list[Cell | str]] = {}
    for each in shown:
        other = each.method if found.is_from_standard else each.baseline
        row = rows.setdefault(other, [method_name(other)])
        row.append(difference_text(each.spread, with_count=len(counts) > 1))
    header = ["", *(task_title(found, task) for task in found.tasks)]
    header += ["Average"] if len(found.tasks) > 1 else []
    reference = method_name(found.contest.reference)
    what = (
        f"Each method minus {reference}"
        if found.is_from_standard
        else f"{reference} minus each method"
    )
    caption = f"{what}, in points; {_pairing(counts)}."
    return Table(caption, header, list(rows.values()))


def _pairing(counts: set[int]) -> str:
    if counts == {1}:
        return "n = 1: no interval"
    count = f"n = {min(counts)}" if len(counts) == 1 else "n in brackets"
    return f"paired by seed, with the 95 % confidence interval of the mean (Student's t, {count})"


def cost_table(found: Results) -> Table:
    """The time of each method, and of its tuning if there was any."""
    tuned = any(cost.candidates for cost in found.costs)
    rows: list[list[Cell | str]] = []
    for cost in found.costs:
        figures = [number_text(cost.seconds, 1), number_text(cost.relative, 2)]
        if tuned:
            figures += [str(cost.candidates), number_text(cost.tuning_seconds, 1)]
            figures.append(number_text(cost.relative_with_tuning, 2))
        rows.append([method_name(cost.method), *figures])
    header = ["", "s per run", "× Standard"]
    caption = (
        "Time of training steps: per run, and relative to Standard's with the same task and seed"
    )
    if tuned:
        header += ["candidates per task", "s of tuning", "× Standard with tuning"]
        caption += "; with tuning: all that was trained for a method"
    return Table(f"{caption}. Runs shared the machine.", header, rows)


# ---- text


def notes(found: Results) -> list[str]:
    """Caveats of a comparison, then its failures."""
    alike: dict[str, list[str]] = {}
    for failure in found.failures:
        kind = "candidate failed, and counts as the worst" if failure.tuning else "no result"
        alike.setdefault(f"{kind}: {shortened(failure.reason)}", []).append(failure.name)
    return [*found.contest.notes, *(f"{', '.join(names)}: {why}" for why, names in alike.items())]


def chosen(found: Results) -> list[str]:
    """The settings that the tuning chose, a line for each task and method."""
    lines = []
    for choice in found.contest.choices:
        if choice.chosen is not None:
            best = choice.candidates[choice.chosen]
            options = best.settings.items()
            settings = ", ".join(f"{name} {value_text(value)}" for name, value in options)
            lines.append(
                f"{choice.task}/{choice.method}: {settings} (held-out score "
                f"{number_text(best.score, 1)}, best of "
                f"{len(choice.candidates)} of {choice.grid_size} points)"
            )
    return lines


def to_markdown(found: Results) -> str:
    """A part of a page: tables, the chosen settings, and notes."""
    parts = [f"{table.caption}\n\n{markdown(table)}" for table in tables(found)]
    lists = {"Chosen on held-out training data:": chosen(found), "Notes:": notes(found)}
    for title, lines in lists.items():
        if lines:
            parts.append(f"{title}\n\n" + "\n".join(f"- {escape_markdown(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def to_csv(found: Results) -> str:
    """Every number in full, a line for each: scores, differences, times."""
    header = ["kind", "task", "method", "metric", "against", "mean", "sd", "low", "high", "n"]
    lines = [*_score_lines(found), *_difference_lines(found), *_time_lines(found)]
    return csv_text(header, lines)


def _score_lines(found: Results) -> Iterator[list[object]]:
    several = len(found.tasks) > 1
    cells = {(*key, "main"): cell.main for key, cell in found.cells.items()}
    for key, cell in found.cells.items():
        cells |= {(*key, name): spread for name, spread in cell.metrics.items()}
    averages = found.averages.items() if several else ()
    cells |= {("average", method, "main"): average for method, average in averages}
    for (task, method, name), spread in cells.items():
        if spread is not None:
            figures = [spread.mean, spread.deviation, "", "", spread.count]
            yield ["score", task, method, name, "", *figures]


def _difference_lines(found: Results) -> Iterator[list[object]]:
    for each in found.differences:
        if each.spread is not None and (each.task is not None or len(found.tasks) > 1):
            names = [each.task or "average", each.method, "main", each.baseline]
            interval = each.spread.interval() or ("", "")
            figures = [each.spread.mean, each.spread.deviation, *interval, each.spread.count]
            yield ["difference", *names, *figures]


def _time_lines(found: Results) -> Iterator[list[object]]:
    for cost in found.costs:
        figures = {
            "seconds_per_run": ("", cost.seconds),
            "relative": (STANDARD, cost.relative),
            "tuning_seconds": ("", cost.tuning_seconds),
            "relative_with_tuning": (STANDARD, cost.relative_with_tuning),
        }
        for name, (against, value) in figures.items():
            yield ["time", "", cost.method, name, against, value, "", "", "", ""]


def task_title(found: Results, name: str) -> str:
    """The title of a task, or of its data."""
    task = found.contest.task(name)
    return task_name(task.name, task.title)


def unit(found: Results, percent: str) -> str:
    """``percent`` where all scores of a contest are percentages, else nothing."""
    return percent if all(map(is_percentage, found.contest.tasks)) else ""
