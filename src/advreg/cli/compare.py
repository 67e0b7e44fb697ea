"""``advreg compare``: carries a comparison out under a live display, and prints its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from advreg.cli.running import Orders, tell, undertake, write_tables
from advreg.lab.report.compare import read, results
from advreg.lab.report.labels import counted, task_name
from advreg.lab.report.score_tables import chosen, notes, tables, to_markdown
from advreg.lab.report.sections.gradients import draw_norms
from advreg.lab.search.compare_settings import CompareSettings, choose_folder
from advreg.lab.search.pool import Left


def run_comparison(settings: CompareSettings, orders: Orders, console: Console) -> int:
    """Make the runs that are left, then print and write the tables; the exit code."""
    from advreg.lab.search.compare import Comparison

    folder = choose_folder(settings)
    return undertake(
        lambda say: Comparison(settings, folder, say),
        lambda comparison, size: _announcement(
            settings, comparison.left, size, comparison.plan() if orders.dry_run else {}
        ),
        lambda: show_comparison(folder, orders.picture, console),
        folder,
        orders,
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
    written = write_tables(folder, to_markdown(found))
    if picture is not None:
        draw_norms(
            runs, picture, {task.name: task_name(task.name, task.title) for task in record.tasks}
        )
        written.append(picture)
    told = f"tables: {', '.join(map(str, written))}; records: {folder}/TASK/METHOD/*/record.json"
    console.print(told, highlight=False, soft_wrap=True)
    return not found.missing


def _announcement(
    settings: CompareSettings, left: Left, size: int, plan: Mapping[str, Left]
) -> str:
    """The plan, with a line for each of its parts."""
    base = settings.any_base
    tuning = f"{settings.budget} candidates each" if settings.budget > 1 else "no tuning"
    preset = f", preset {base.preset}" if base.preset else ""
    told = (
        f"{', '.join(settings.tasks)}: {', '.join(settings.methods)}; {tuning}, "
        f"{counted(len(settings.seeds), 'seed')}; model {Path(base.model).name}{preset}; "
        f"{counted(left.jobs, 'run')} to make, {size} at a time"
    )
    lines = [
        f"  {name}: {counted(part.jobs, 'run')}, forward passes over {part.cost:,.0f} samples "
        f"({part.cost / left.cost:.0%})"
        for name, part in plan.items()
    ]
    return "\n".join([told, *lines])
