"""``advreg compare``: carries a comparison out under a live display, and prints its tables."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from advreg.cli.running import INTERRUPTED, carry_out, make_runner
from advreg.cli.saying import Notices
from advreg.drawing import check_drawable
from advreg.recipes.compare_settings import CompareSettings, choose_folder
from advreg.report.compare import Results, read, results
from advreg.report.curves import draw_norms
from advreg.report.render import chosen, notes, sheets, to_csv, to_markdown, to_rich
from advreg.report.words import counted

MARKDOWN_FILE, CSV_FILE = "table.md", "table.csv"


def run_comparison(
    settings: CompareSettings, jobs: int | None, devices: str | None, picture: Path | None, console: Console
) -> int:
    """Do all that is left to do, then print and write the tables; the exit code."""
    from advreg.hf.run import quiet_libraries
    from advreg.recipes.compare import Comparison

    if picture is not None:
        check_drawable(picture)
    quiet_libraries()
    folder = choose_folder(settings)
    runner, say = make_runner(jobs, devices, folder), Notices(console)
    comparison = Comparison(settings, folder, say)
    say(_announcement(settings, comparison.left, runner.size))
    if not carry_out(comparison, runner, folder, say, console):
        return INTERRUPTED
    found = _finish(folder, picture, console)
    return int(any(not failure.tuning for failure in found.failures))


def show_table(folder: Path, picture: Path | None, console: Console) -> None:
    """Print the tables of a comparison from its records, and write them anew."""
    if picture is not None:
        check_drawable(picture)
    _finish(folder, picture, console)


def _finish(folder: Path, picture: Path | None, console: Console) -> Results:
    record, runs = read(folder)
    found = results(record, runs)
    for sheet in sheets(found):
        console.print(sheet.caption, highlight=False, markup=False)
        console.print(to_rich(sheet))
    for title, lines in (("chosen on held-out training data:", chosen(found)), ("notes:", notes(found))):
        if lines:
            console.print("\n".join([title, *(f"  {line}" for line in lines)]), highlight=False, markup=False)
    (folder / MARKDOWN_FILE).write_text(to_markdown(found), encoding="utf-8")
    (folder / CSV_FILE).write_text(to_csv(found), encoding="utf-8")
    written = [str(folder / name) for name in (MARKDOWN_FILE, CSV_FILE)]
    if picture is not None:
        draw_norms(runs, picture, {task.name: task.title for task in record.tasks})
        written.append(str(picture))
    console.print(
        f"tables: {', '.join(written)}; records: {folder}/TASK/METHOD/*/record.json", highlight=False, soft_wrap=True
    )
    return found


def _announcement(settings: CompareSettings, left: int, size: int) -> str:
    base = settings.any_base
    tuning = f"{settings.budget} candidates each" if settings.budget > 1 else "no tuning"
    preset = f", preset {base.preset}" if base.preset else ""
    return (
        f"{', '.join(settings.tasks)}: {', '.join(settings.methods)}; {tuning}, "
        f"{counted(len(settings.seeds), 'seed')}; model {Path(base.model).name}{preset}; {counted(left, 'run')} to "
        f"make, {size} at a time"
    )
