"""``advreg study``: carries a parameter study out under a live display; prints its tables and draws it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from advreg.cli.compare import CSV_FILE, MARKDOWN_FILE
from advreg.cli.running import INTERRUPTED, carry_out, make_runner
from advreg.cli.saying import Notices
from advreg.drawing import PictureError, check_drawable
from advreg.recipes.study_record import STUDY_FILE, StudyRecord, load
from advreg.recipes.study_settings import StudySettings, choose_folder
from advreg.report.render import to_rich
from advreg.report.study import failures, findings, notes, sheets, to_csv, to_markdown
from advreg.report.study_picture import draw_study
from advreg.report.words import counted

PICTURE_FILE = "study.svg"


def run_study(
    settings: StudySettings, jobs: int | None, devices: str | None, picture: Path | None, console: Console
) -> int:
    """Do all that is left to do, then print, write and draw what was found; the exit code."""
    from advreg.hf.run import quiet_libraries
    from advreg.recipes.study import Study

    if picture is not None:
        check_drawable(picture)
    quiet_libraries()
    folder = choose_folder(settings)
    runner, say = make_runner(jobs, devices, folder), Notices(console)
    study = Study(settings, folder, say)
    say(_announcement(settings, study.left, runner.size))
    if not carry_out(study, runner, folder, say, console):
        return INTERRUPTED
    return int(bool(failures(_finish(folder, picture, console))))


def show_study(folder: Path, picture: Path | None, console: Console) -> None:
    """Print the tables of a study from its record, and write and draw them anew."""
    if picture is not None:
        check_drawable(picture)
    _finish(folder, picture, console)


def _finish(folder: Path, picture: Path | None, console: Console) -> StudyRecord:
    record = load(folder)
    found = findings(record)
    for sheet in sheets(found):
        console.print(sheet.caption, highlight=False, markup=False)
        console.print(to_rich(sheet))
    if told := notes(record):
        console.print("\n".join(["notes:", *(f"  {line}" for line in told)]), highlight=False, markup=False)
    (folder / MARKDOWN_FILE).write_text(to_markdown(found), encoding="utf-8")
    (folder / CSV_FILE).write_text(to_csv(found), encoding="utf-8")
    written = [folder / name for name in (STUDY_FILE, MARKDOWN_FILE, CSV_FILE)]
    try:
        draw_study(found, picture or folder / PICTURE_FILE)
        written.append(picture or folder / PICTURE_FILE)
    except PictureError as error:  # one that was asked for was checked before; the others are a gift
        console.print(f"no picture: {error}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
    return record


def _announcement(settings: StudySettings, left: int, size: int) -> str:
    base = settings.base
    preset = f", preset {base.preset}" if base.preset else ""
    beside = f" beside {', '.join(settings.baselines)}" if settings.baselines else ""
    return (
        f"{base.task}: {', '.join(study.name for study in settings.studies)} of {settings.method}{beside}; "
        f"{len(settings.variants())} different settings, {counted(len(settings.seeds), 'seed')}; model "
        f"{Path(base.model).name}{preset}; {counted(left, 'run')} to make, {size} at a time"
    )
