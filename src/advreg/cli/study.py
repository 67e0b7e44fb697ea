"""``advreg study``: runs a parameter study with a live display, prints its tables and draws it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from advreg.cli.running import RunOptions, tell, undertake, write_tables
from advreg.lab.drawing import PictureError
from advreg.lab.report.labels import counted
from advreg.lab.report.sections.studies import draw_study
from advreg.lab.report.study import failures, findings, notes, tables, to_markdown
from advreg.lab.search.study_settings import StudySettings, choose_folder
from advreg.records.study import STUDY_FILE, load

PICTURE_FILE = "study.svg"


def run_study(settings: StudySettings, options: RunOptions, console: Console) -> int:
    """Make the remaining runs, then print, write and draw the results; returns the exit code."""
    from advreg.lab.search.study import Study

    folder = choose_folder(settings)
    return undertake(
        lambda say: Study(settings, folder, say),
        lambda study, size: _announcement(settings, study.plan(), size, options.dry_run),
        lambda: show_study(folder, options.picture, console),
        folder,
        options,
        console,
    )


def show_study(folder: Path, picture: Path | None, console: Console) -> bool:
    """Print the tables of a study from its record, and write and draw them again; returns whether
    all runs have a result.
    """
    record = load(folder)
    found = findings(record)
    tell(tables(found), {"notes:": notes(record)}, console)
    written = [folder / STUDY_FILE, *write_tables(folder, to_markdown(found))]
    drawn = picture or folder / PICTURE_FILE
    try:
        draw_study(found, drawn)
        written.append(drawn)
    except PictureError as error:  # no run has finished
        console.print(f"no picture: {error}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
    return not failures(record)


def _announcement(
    settings: StudySettings, plan: Mapping[str, tuple[int, int]], size: int, in_full: bool
) -> str:
    """The plan; in full, with a line for each of the settings that are left."""
    base, seeds = settings.base, counted(len(settings.seeds), "seed")
    left = sum(runs for runs, _ in plan.values())
    steps = sum(runs * each for runs, each in plan.values())
    preset = f", preset {base.preset}" if base.preset else ""
    baselines = f"; baselines: {', '.join(settings.baselines)}" if settings.baselines else ""
    told = (
        f"{base.task}: {', '.join(study.name for study in settings.studies)} of "
        f"{settings.method}{baselines}; {len(settings.variants())} different settings, {seeds}; "
        f"model {Path(base.model).name}{preset}; {counted(left, 'run')} to make, {size} at a "
        f"time: {steps:,} steps"
    )
    lines = [
        f"  {name}: {counted(runs, 'run')} of {each:,} steps" for name, (runs, each) in plan.items()
    ]
    return "\n".join([told, *(lines if in_full else ())])
