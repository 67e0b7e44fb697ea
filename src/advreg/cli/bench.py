"""``advreg bench``: measures with a progress bar, prints tables, writes the record and the
picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from advreg.lab.bench.run import Bench
from advreg.lab.bench.settings import BenchSettings
from advreg.lab.drawing import check_drawable
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.report.sections.bench import (
    STEPS_CAPTION,
    STEPS_HEADER,
    WHOLE_HEADER,
    bench_title,
    draw_benches,
    step_cells,
    whole_cells,
)
from advreg.records.bench import BenchRecord, Panel, load

INTERRUPTED = 130


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
    code = 0
    try:
        with _progress(console) as progress:
            bar = progress.add_task("", total=None)
            record = bench.run(
                lambda text, done, total: progress.update(
                    bar, description=text, completed=done, total=total
                ),
                lambda so_far: so_far.save(out),
            )
    except KeyboardInterrupt:
        record, code = bench.record("interrupted"), INTERRUPTED
        console.print("interrupted; results so far:")
    except Exception:
        if any(row.rounds for panel in bench.record("failed").panels for row in panel.rows):
            bench.record("failed").save(out)
        raise
    record.save(out)
    print_record(record, console)
    console.print(f"record: {out}", highlight=False, soft_wrap=True)
    if picture is not None and code == 0:
        _draw([record], picture, console)
    return code


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
    """Two tables for each shape, and the notes."""
    for panel in record.panels:
        console.print(steps_table(record, panel))
        if panel.whole:
            console.print(whole_table(record, panel))
    for note in record.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def steps_table(record: BenchRecord, panel: Panel) -> Table:
    """The cost of a step."""
    table = Table(title=bench_title(record, panel), caption=STEPS_CAPTION, box=box.SIMPLE_HEAD)
    for column in STEPS_HEADER:
        left = column == "method"
        table.add_column(
            column,
            justify="left" if left else "right",
            no_wrap=not left,
            min_width=16 if left else None,
        )
    for row in panel.rows:
        table.add_row(*step_cells(row))
    return table


def whole_table(record: BenchRecord, panel: Panel) -> Table:
    """The cost of a whole run."""
    epochs = record.settings.get("epochs")
    table = Table(
        title=f"a whole run of {epochs} epochs, {panel.batch} × {panel.tokens}", box=box.SIMPLE_HEAD
    )
    for column in WHOLE_HEADER:
        table.add_column(
            column, justify="left" if column == "method" else "right", no_wrap=column != "method"
        )
    for run in panel.whole:
        table.add_row(*whole_cells(run))
    return table


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
