"""The tables of a comparison, its notes, and both as Markdown and CSV."""

from __future__ import annotations

from functools import partial
from itertools import chain

from advreg.lab.kinds.registry import scale_of
from advreg.lab.report.compare import Cost, Results
from advreg.lab.report.labels import (
    NOT_FINISHED,
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
from advreg.lab.report.tables import Cell, Table, best_cells, escape_markdown, markdown
from advreg.records.compare import Choice


def tables(found: Results) -> list[Table]:
    """All tables that have something to show."""
    return [*score_tables(found), cost_table(found)]


def score_tables(found: Results) -> list[Table]:
    """The tables of scores that have something to show.

    Differences from one of many variants of a method say little, and are left out.
    """
    made = [_scores(found), _metrics(found), _differences(found)]
    return [table for table in made if table is not None]


def _scores(found: Results) -> Table:
    contest = found.contest
    seeds = over_seeds(len(contest.seeds))
    columns = [_score_column(found, task) for task in found.averaged]
    names = [method_name(method) for method in found.methods]
    sets = " or ".join(dict.fromkeys(task.scored_on for task in contest.tasks))
    score = " or ".join(dict.fromkeys(map(score_name, contest.tasks)))
    lower = " (lower is better)" if contest.scale.lower_is_better else ""
    caption = (
        f"{score[0].upper()}{score[1:]}{lower} on {sets}{unit(found, ' in percent')}, "
        f"{seeds}; {contest.terms}. The best are bold."
    )
    return Table(caption, _header(found), [list(row) for row in zip(names, *columns, strict=True)])


def _header(found: Results) -> list[str]:
    return [
        "",
        *("Average" if task is None else task_title(found, task) for task in found.averaged),
    ]


def _score_column(found: Results, task: str | None) -> list[Cell]:
    """The cells of all methods on a task, or of their averages."""
    tasks = found.tasks if task is None else [task]
    scale = found.scale(task)
    spreads, texts = [found.score(task, method) for method in found.methods], []
    for method, spread in zip(found.methods, spreads, strict=True):
        cells = [found.cells[each, method] for each in tasks]
        asked = len(found.contest.seeds) if task is None else cells[0].asked
        failed = any(cell.failed for cell in cells)
        texts.append(spread_text(spread, asked, failed, scale.decimals))
    return best_cells(texts, spreads, scale)


def _metrics(found: Results) -> Table | None:
    """Each metric by itself, where a task has more than the metric of its score."""
    rows: list[list[Cell | str]] = []
    for task in found.tasks:
        cells = [found.cells[task, method] for method in found.methods]
        for name in dict.fromkeys(name for cell in cells for name in cell.metrics):
            spreads = [cell.metrics.get(name) for cell in cells]
            title = f"{task_title(found, task)}, {metric_name(name)}"
            scale = scale_of([name.rpartition("_")[2]])
            texts = [spread_text(each, decimals=scale.decimals) for each in spreads]
            rows.append([title, *best_cells(texts, spreads, scale)])
    if len(rows) == len(found.tasks):
        return None
    caption = f"Each metric{unit(found, ', in percent')}."
    return Table(caption, ["", *map(method_name, found.methods)], rows)


def _differences(found: Results) -> Table | None:
    reference, baselines = found.contest.reference, found.baselines
    compared = found.contest.compared
    has_gains = compared is not None and bool(compared.gains)  # which have better intervals
    if not baselines or found.contest.has_variants or has_gains:
        return None
    plain = found.is_from_standard
    rows = {
        method: [
            found.difference(task, *((method, reference) if plain else (reference, method)))
            for task in found.averaged
        ]
        for method in baselines
    }
    counts = {spread.count for spread in chain(*rows.values()) if spread is not None}
    decimals = found.contest.scale.decimals
    show = partial(difference_text, decimals=decimals, with_count=len(counts) > 1)
    cells = [[method_name(method), *map(show, row)] for method, row in rows.items()]
    name = method_name(reference)
    what = f"Each method minus {name}" if plain else f"{name} minus each method"
    return Table(f"{what}, in points; {_pairing(counts)}.", _header(found), cells)


def _pairing(counts: set[int]) -> str:
    if counts == {1}:
        return "n = 1: no interval"
    count = f"n = {min(counts)}" if len(counts) == 1 else "n in brackets"
    return f"paired by seed, with the 95 % confidence interval of the mean (Student's t, {count})"


def cost_table(found: Results) -> Table:
    """The time of each method, and of its tuning if there was any."""
    header = ["", "s per run", "× Standard"]
    caption = (
        "Time of training steps: per run, and relative to Standard's with the same task and seed"
    )
    if any(cost.candidates for cost in found.costs):
        header += ["candidates per task", "s of tuning", "× Standard with tuning"]
        caption += "; with tuning: all that was trained for a method"
    rows = [_cost_cells(cost)[: len(header)] for cost in found.costs]
    return Table(f"{caption}. Runs shared the machine.", header, rows)


def _cost_cells(cost: Cost) -> list[str]:
    """The cells of a method; without tuning, only the first three count."""
    return [
        method_name(cost.method),
        number_text(cost.seconds, 1),
        number_text(cost.relative, 2),
        str(cost.candidates),
        number_text(cost.tuning_seconds, 1),
        number_text(cost.relative_with_tuning, 2),
    ]


# ---- text


def notes(found: Results) -> list[str]:
    """Caveats of a comparison, then its failures."""
    alike: dict[str, list[str]] = {}
    for choice in found.contest.choices:
        for candidate in choice.candidates:
            if candidate.error is not None:
                why = f"candidate failed, and counts as the worst: {shortened(candidate.error)}"
                alike.setdefault(why, []).append(candidate.folder)
    for name, reason in found.missing.items():
        alike.setdefault(f"no result: {shortened(reason or NOT_FINISHED)}", []).append(name)
    return [*found.contest.notes, *(f"{', '.join(names)}: {why}" for why, names in alike.items())]


def chosen(found: Results) -> list[str]:
    """The settings that the tuning chose, a line for each task and method."""
    decimals, choices = found.contest.scale.decimals, found.contest.choices
    return [_choice_text(choice, decimals) for choice in choices if choice.chosen is not None]


def _choice_text(choice: Choice, decimals: int) -> str:
    best = choice.candidates[choice.chosen or 0]
    settings = ", ".join(f"{name} {value_text(value)}" for name, value in best.settings.items())
    score = number_text(best.score, decimals)
    return (
        f"{choice.task}/{choice.method}: {settings} (held-out score {score}, best of "
        f"{len(choice.candidates)} of {choice.grid_size} points)"
    )


def to_markdown(found: Results) -> str:
    """A part of a page: tables, the chosen settings, and notes."""
    parts = [f"{table.caption}\n\n{markdown(table)}" for table in tables(found)]
    lists = {"Chosen on held-out training data:": chosen(found), "Notes:": notes(found)}
    for title, lines in lists.items():
        if lines:
            parts.append(f"{title}\n\n" + "\n".join(f"- {escape_markdown(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def task_title(found: Results, name: str) -> str:
    """The title of a task, or of its data."""
    task = found.contest.task(name)
    return task_name(task.name, task.title)


def unit(found: Results, percent: str) -> str:
    """``percent`` where all scores of a contest are percentages, else nothing."""
    return percent if all(map(is_percentage, found.contest.tasks)) else ""
