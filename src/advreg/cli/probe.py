"""``advreg probe``: fits heads on frozen encoders, prints the table, writes the record and the
picture.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from advreg.cli.running import tell
from advreg.hf.progress import progress_bar
from advreg.lab.drawing import check_drawable
from advreg.lab.kinds.training import device_name, quiet_libraries
from advreg.lab.report.sections.probing import draw_probing, scores_table
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
    tell([scores_table(results)], {}, console)
    console.print(f"record: {out}", highlight=False, soft_wrap=True)
    if picture is not None:
        draw_probing(results, picture)
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)


def redraw(path: Path, picture: Path | None, console: Console) -> None:
    """Print and draw an existing record."""
    record = load_as(path, ProbeRecord)
    tell([scores_table(record.results)], {}, console)
    if picture is not None:
        draw_probing(record.results, picture)


def _done(out: Path, settings: ProbeSettings, resume: bool) -> list[ProbeResult]:
    """The record of an earlier call with the same settings, when resuming."""
    if not out.exists():
        return []
    if not resume:
        raise ValueError(
            f"out '{out}' exists already; add --resume to resume it, or choose another name"
        )
    record = load_as(out, ProbeRecord)
    asked = dataclasses.asdict(settings)
    before = {"pooling": ProbeSettings.pooling, **record.settings}
    kept = asked.keys() - {"encoders", "tasks", "data"}
    changed = [name for name in asked if name in kept and asked[name] != before.get(name)]
    if changed:
        told = ", ".join(f"{name} was {before.get(name)}, is {asked[name]}" for name in changed)
        raise ValueError(f"out '{out}' was made with other settings: {told}; choose another name")
    return list(record.results)
