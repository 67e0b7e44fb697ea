"""What has no result, and a list of all runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.labels import NOTHING, duration, method_name, metric_text
from advreg.lab.report.page.parts import Folded, Section
from advreg.lab.report.tables import Table
from advreg.records.compare import ComparedRun, seconds_of
from advreg.records.study import StudiedRun


def failure_section(found: Gathered) -> Section:
    """Runs that failed or did not end, and files that cannot be read."""
    rows = [[name, "failed", error] for name, error in _failed(found).items()]
    rows += [[each.name, "unfinished", "still running, or stopped"] for each in found.unfinished]
    rows += [[each.name, "unreadable", each.reason] for each in found.unreadable]
    table = Table("Runs without a result, and why.", ["run", "status", "reason"], rows)
    return Section("failed", "Failed and unfinished", "", [table] if rows else [])


def _failed(found: Gathered) -> dict[str, str]:
    """The errors of failed runs, by name; those of a run's own record first."""
    failed = [run for run in found.runs if run.record.outcome.status == "failed"]
    errors = {run.name: run.record.outcome.error or "" for run in failed}
    for folder, error in _named_failures(found):
        errors.setdefault(found.name_of(folder), error)
    return errors


def _named_failures(found: Gathered) -> Iterator[tuple[Path, str]]:
    """The failed runs that comparisons and studies name."""
    made: list[tuple[Path, ComparedRun | StudiedRun]] = []
    for folder, compared in found.comparisons.items():
        made += [(folder, run) for run in compared.runs]
    for folder, study in found.studies.items():
        made += [(folder, run) for variant in study.variants for run in variant.runs]
    for folder, each in made:
        if each.error is not None:
            yield folder / each.folder, each.error


def run_section(found: Gathered) -> Section:
    """A row for every run."""
    header = ["run", "task", "model", "method", "seed", "status", "metrics", "training", "started"]
    table = Table("Every run that has a record.", header, list(map(_row, found.runs)))
    parts = [Folded(f"{len(found.runs)} runs", [table])] if found.runs else []
    return Section("runs", "All runs", "", parts)


def _row(run: Run) -> list[str]:
    record = run.record
    metrics = [
        f"{name} {metric_text(name, value)}" for name, value in record.outcome.metrics.items()
    ]
    return [
        run.name,
        record.task.name,
        record.model.name,
        method_name(record.method.name),
        str(record.training.seed),
        record.outcome.status,
        ", ".join(metrics) or NOTHING,
        duration(seconds_of(record)),
        record.started[:16].replace("T", " "),
    ]
