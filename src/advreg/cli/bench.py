"""``advreg bench``: measures with a progress bar, prints tables, writes the record and the
picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from advreg.cli.running import INTERRUPTED, tell
from advreg.lab.bench.run import Bench
from advreg.lab.bench.settings import BenchSettings
from advreg.lab.drawing import check_drawable
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.report.sections.bench import draw_benches, panel_tables
from advreg.records.bench import BenchRecord, load


def measure(
    settings: BenchSettings,
    out: Path | None,
    picture: Path | None,
    commit: str | None,
    console: Console,
) -> int:
    """Measure, print and write; returns the exit code. Partial results are written after an
    interruption or an error.
    """
    if picture is not None:
        check_drawable(picture)
    out = choose_file(out, settings.model)
    quiet_libraries()
    bench = Bench(settings, commit)
    try:
        record, code = _watched(bench, out, console), 0
    except KeyboardInterrupt:
        record, code = bench.record("interrupted"), INTERRUPTED
        console.print("interrupted; results so far:")
    except Exception:
        failed = bench.record("failed")
        if any(row.rounds for panel in failed.panels for row in panel.rows):
            failed.save(out)
        raise
    record.save(out)
    print_record(record, console)
    console.print(f"record: {out}", highlight=False, soft_wrap=True)
    if picture is not None and code == 0:
        _draw([record], picture, console)
    return code


def _watched(bench: Bench, out: Path, console: Console) -> BenchRecord:
    """Measure under a progress bar, and keep the record after each round."""
    with _progress(console) as progress:
        bar = progress.add_task("", total=None)

        def watch(text: str, done: int, total: int) -> None:
            progress.update(bar, description=text, completed=done, total=total)

        return bench.run(watch, lambda so_far: so_far.save(out))


def redraw(files: Sequence[Path], picture: Path | None, console: Console) -> None:
    """Print and draw existing records."""
    if picture is not None:
        check_drawable(picture)
    records = [load(path) for path in files]
    for record in records:
        print_record(record, console)
    if picture is not None:
        _draw(records, picture, console)


def choose_file(out: Path | None, model: str) -> Path:
    """The path of the record; an existing file is not overwritten."""
    if out is not None:
        if out.exists():
            raise ValueError(
                f"out '{out}' exists already, and records are not overwritten; choose another name"
            )
        return out
    stem = f"bench-{Path(model).name}"
    numbered = (
        Path("runs") / f"{stem}{f'-{number}' if number else ''}.json" for number in range(1_000_000)
    )
    return next(path for path in numbered if not path.exists())


def print_record(record: BenchRecord, console: Console) -> None:
    """The tables of each shape, and the notes."""
    tables = [table for panel in record.panels for table in panel_tables(record, panel)]
    tell(tables, {"notes:": record.notes}, console)


def _draw(records: Sequence[BenchRecord], picture: Path, console: Console) -> None:
    draw_benches(records, picture)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
