"""``advreg probe``: fits heads on frozen encoders, prints the table, writes the record and the
picture.
"""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from advreg.cli.train import spread
from advreg.hf.progress import progress_bar
from advreg.lab.drawing import check_drawable
from advreg.lab.kinds.training import device_name, quiet_libraries
from advreg.lab.report.sections.probing import by_task, draw_probing
from advreg.lab.search.probing import ProbeSettings, probe
from advreg.records.environment import capture_environment, now
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import load_as, save_as


def run_probe(
    settings: ProbeSettings,
    out: Path,
    picture: Path | None,
    commit: str | None,
    resume: bool,
    console: Console,
) -> None:
    """Probe, and save the results after every encoder and task."""
    if picture is not None:
        check_drawable(picture)
    done = _done(out, settings, resume)
    quiet_libraries()
    environment, started = capture_environment(device_name()), now()
    found = environment["git"]

    def save(results: list[ProbeResult]) -> None:
        record = ProbeRecord(
            settings=dataclasses.asdict(settings),
            commit=commit or (found["commit"] if found else None),
            environment=environment,
            started=started,
            finished=now(),
            results=results,
        )
        save_as(out, record)

    with progress_bar() as progress:
        results = probe(settings, progress, save, done)
    console.print(scores_table(results))
    console.print(f"record: {out}", highlight=False, soft_wrap=True)
    if picture is not None:
        draw_probing(results, picture)
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)


def redraw(path: Path, picture: Path | None, console: Console) -> None:
    """Print and draw an existing record."""
    record = load_as(path, ProbeRecord)
    console.print(scores_table(record.results))
    if picture is not None:
        draw_probing(record.results, picture)


def scores_table(results: list[ProbeResult]) -> Table:
    """Mean ± standard deviation of each encoder's heads on each task."""
    scores = by_task(results)
    labels = list(dict.fromkeys(label for methods in scores.values() for label in methods))
    table = Table(
        "encoder",
        *scores,
        title="frozen encoder, fitted head: score in percent",
        box=box.SIMPLE_HEAD,
    )
    best = {task: max(map(statistics.fmean, methods.values())) for task, methods in scores.items()}
    for label in labels:
        table.add_row(
            label, *(_cell(methods.get(label), best[task]) for task, methods in scores.items())
        )
    return table


def _cell(values: list[float] | None, best: float) -> str:
    if values is None:
        return "–"
    text = spread(values, decimals=1)
    return f"[bold]{text}[/bold]" if statistics.fmean(values) == best else text


def _done(out: Path, settings: ProbeSettings, resume: bool) -> list[ProbeResult]:
    """The record of an earlier call with the same settings, when resuming."""
    if not out.exists():
        return []
    if not resume:
        raise ValueError(
            f"out '{out}' exists already; add --resume to resume it, or choose another name"
        )
    record = load_as(out, ProbeRecord)
    asked, before = (
        dataclasses.asdict(settings),
        {"pooling": ProbeSettings.pooling, **record.settings},
    )
    changed = [
        name
        for name in asked
        if name not in ("encoders", "tasks", "data") and asked[name] != before.get(name)
    ]
    if changed:
        told = ", ".join(f"{name} was {before.get(name)}, is {asked[name]}" for name in changed)
        raise ValueError(f"out '{out}' was made with other settings: {told}; choose another name")
    return list(record.results)
