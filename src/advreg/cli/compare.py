"""``advreg compare``: makes the runs under a live display, and prints what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from advreg.cli.running import COMPARE_PAGE, RunOptions, tell, undertake, write_tables
from advreg.lab.report.compare import read, results
from advreg.lab.report.gains import flaws, gain_markdown, gain_tables
from advreg.lab.report.labels import counted, task_name
from advreg.lab.report.score_tables import chosen, notes, tables, to_markdown
from advreg.lab.report.sections.gradients import draw_norms
from advreg.lab.search.compare_settings import CompareSettings, choose_folder
from advreg.lab.search.pool import Remaining
from advreg.records.compare import CompareRecord


def run_comparison(settings: CompareSettings, options: RunOptions, console: Console) -> int:
    """Make the runs that are left, then print and write the tables; the exit code."""
    from advreg.lab.search.compare import Comparison

    folder = choose_folder(settings)
    return undertake(
        lambda say: Comparison.open(settings, folder, say),
        lambda comparison, size: _announcement(
            settings, comparison.left, size, comparison.plan() if options.dry_run else {}
        ),
        lambda: show_comparison(folder, options.picture, console),
        folder,
        options,
        console,
    )


def show_comparison(folder: Path, picture: Path | None, console: Console) -> bool:
    """Print the tables of a comparison from its records, and write them again; whether all runs
    have a result.
    """
    record, runs = read(folder)
    found = results(record, runs)
    tell(
        tables(found),
        {"chosen on held-out training data:": chosen(found), "notes:": notes(found)},
        console,
    )
    written = write_tables(folder, gain_markdown(record, found) + to_markdown(found), COMPARE_PAGE)
    if picture is not None:
        titles = {task.name: task_name(task.name, task.title) for task in record.tasks}
        draw_norms(runs, picture, titles)
        written.append(picture)
    places = f"tables: {', '.join(map(str, written))}; records: {folder}/TASK/METHOD/*/record.json"
    console.print(places, highlight=False, soft_wrap=True)
    tell(gain_tables(record, found, console.width), {"no verdict:": flaws(record)}, console)
    for line in _last_lines(record, folder):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    has_models = not record.gains or len(record.best) == len(record.tasks)
    return has_models and not found.missing


def _last_lines(record: CompareRecord, folder: Path) -> Iterator[str]:
    """The winner's model, and last the comparison in one sentence."""
    for task, place in record.best.items():
        name = f" of {task_name(task)}" if len(record.best) > 1 else ""
        yield f"the winner's model{name}: {folder / place / 'model'}"
    if record.conclusion is not None:
        yield record.conclusion


def _announcement(
    settings: CompareSettings, left: Remaining, size: int, plan: Mapping[str, Remaining]
) -> str:
    """The plan, with a line for each of its parts."""
    base = settings.any_base
    tuning = f"{settings.candidates} candidates each" if settings.candidates > 1 else "no tuning"
    preset = f", preset {base.preset}" if base.preset else ""
    seeds = counted(len(settings.seeds), "seed")
    more = settings.most_seeds > len(settings.seeds)
    announced = (
        f"{', '.join(settings.tasks)}: {', '.join(settings.methods)}; {tuning}, {seeds}"
        f"{f', up to {settings.most_seeds} until all is decided' if more else ''}; "
        f"model {Path(base.model).name}{preset}; {counted(left.jobs, 'run')} to make, {size} at a "
        "time"
    )
    lines = [
        f"  {name}: {counted(part.jobs, 'run')}, forward passes over {part.cost:,.0f} samples "
        f"({part.cost / left.cost:.0%})"
        for name, part in plan.items()
    ]
    return "\n".join([announced, *lines])
