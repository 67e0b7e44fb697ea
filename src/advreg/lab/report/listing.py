"""Runs as a list: one line for each, to be filtered and sorted."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.groups import MainMetrics, settings_of, varying_options
from advreg.lab.report.labels import NOTHING, duration, value_text
from advreg.lab.report.render import Sheet
from advreg.records.compare import score_of, seconds_of
from advreg.records.run import RunRecord

_SHARED = ("task", "model", "method", "seed", "status")
# beginnings of training fields that change nothing in a run, or that epochs and batch_size tell
_NO_MATTER = (
    *(
        "save_",
        "eval_",
        "logging_",
        "dataloader_",
        "per_device_",
        "report_to",
        "disable_tqdm",
        "num_train_epochs",
    ),
)
STATUSES = ("finished", "failed", "unfinished")


@dataclass(frozen=True)
class Line:
    """A run.

    Args:
        run: the end of its folder's path, as long as no other listed run has it too.
        task, model, method, seed: what was run.
        status: finished, failed or unfinished (still running, or stopped).
        score: the mean of the task's main metrics, in percent.
        metric: their names.
        seconds: of its training steps.
        started: in UTC.
        settings: options in which it differs from other runs of its method.
        error: why it failed.
        path: its folder; begins with the one that was searched, as it was given.
    """

    run: str
    task: str = ""
    model: str = ""
    method: str = ""
    seed: int | None = None
    status: str = "unfinished"
    score: float | None = None
    metric: str = ""
    seconds: float | None = None
    started: str = ""
    settings: str = ""
    error: str = ""
    path: str = ""


SORTED_BY = tuple(
    field.name for field in fields(Line) if field.name not in ("settings", "error", "metric")
)


def lines(found: Gathered, main_metrics: MainMetrics, tuning: bool = False) -> list[Line]:
    """All runs; those that only served to choose settings if ``tuning``."""
    runs = [run for run in found.runs if tuning or not run.is_tuning]
    differences = _differences([run.record for run in runs])
    listed = [_line(run, main_metrics, differences[run.record.method.name]) for run in runs]
    waiting = [
        Line(run=run.name, method=run.method, seed=run.seed, path=run.folder.as_posix())
        for run in found.unfinished
    ]
    return listed + waiting


def _differences(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """By method, the options in which its runs differ."""
    by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        by_method.setdefault(record.method.name, []).append(record)
    return {
        method: [names[0] for names in varying_options(mine)] for method, mine in by_method.items()
    }


def _line(run: Run, main_metrics: MainMetrics, different: Sequence[str]) -> Line:
    record = run.record
    metrics = record.outcome.metrics
    main = main_metrics(record.task.name, metrics)
    settings = settings_of(record)
    done = record.outcome.status == "finished"
    return Line(
        run=run.name,
        task=record.task.name,
        model=record.model.name,
        method=record.method.name,
        seed=record.training.seed,
        status="unfinished" if record.outcome.status == "running" else record.outcome.status,
        score=score_of(metrics, main) if done else None,
        metric=", ".join(main),
        seconds=seconds_of(record) if done else None,
        started=record.started,
        settings=_text({option: settings.get(option) for option in different}),
        error=record.outcome.error or "",
        path=run.folder.as_posix(),
    )


def _text(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in options.items())


def with_brief_settings(
    listed: Sequence[Line], found: Gathered, defaults: Callable[[str], Mapping[str, Any]]
) -> list[Line]:
    """The lines with no more settings than people need to tell them apart.

    Those are what differs between the listed runs of a task, a model and a method, is not at its
    default, and matters for what is computed.

    Args:
        listed: some of the lines.
        found: what they were made of.
        defaults: the usual settings of a method, by its name.
    """
    records = {run.folder.as_posix(): run.record for run in found.runs}
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for line in listed:
        if line.path in records:
            groups.setdefault(_kind(line), []).append(records[line.path])
    different = {
        kind: {name for names in varying_options(mine) for name in names}
        for kind, mine in groups.items()
    }
    return [
        replace(
            line,
            settings=_text(
                _told(records[line.path], different[_kind(line)], defaults(line.method))
            ),
        )
        if line.path in records
        else line
        for line in listed
    ]


def _kind(line: Line) -> tuple[str, str, str]:
    return line.task, line.model, line.method


def _told(record: RunRecord, names: Container[str], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these options that matter and are not as usual."""
    return {
        name: value
        for name, value in settings_of(record).items()
        if name in names and value != usual.get(name) and not name.startswith(_NO_MATTER)
    }


def chosen(all_lines: Sequence[Line], wanted: Mapping[str, Sequence[Any]]) -> list[Line]:
    """Those that have one of the wanted values in every field that is named; a field without any
    takes all.
    """
    return [
        line
        for line in all_lines
        if all(not values or getattr(line, name) in values for name, values in wanted.items())
    ]


def ordered(all_lines: Sequence[Line], by: str) -> list[Line]:
    """By a field, the highest first with a minus before it; lines without a value come last."""
    name, reverse = by.removeprefix("-"), by.startswith("-")
    if name not in SORTED_BY:
        raise ValueError(
            f"sort must be one of {', '.join(SORTED_BY)}, with - before it for the highest first, "
            f"got '{by}'"
        )
    value: Callable[[Line], Any] = lambda line: getattr(line, name)  # noqa: E731
    known = [line for line in all_lines if value(line) not in (None, "")]
    unknown = [line for line in all_lines if value(line) in (None, "")]
    return sorted(known, key=value, reverse=reverse) + unknown


def sheet_of(all_lines: Sequence[Line]) -> Sheet:
    """The table for a terminal: what is the same in all lines is in its caption, and not in a
    column.
    """
    columns: dict[str, Callable[[Line], str]] = {
        "run": lambda line: line.run,
        "task": lambda line: line.task,
        "model": lambda line: line.model.rpartition("/")[2],
        "method": lambda line: line.method,
        "settings": lambda line: line.settings,
        "seed": lambda line: "" if line.seed is None else str(line.seed),
        "status": lambda line: line.status,
        "score": lambda line: "" if line.score is None else f"{line.score:.1f}",
        "training": lambda line: "" if line.seconds is None else duration(line.seconds),
        "started": lambda line: line.started[:16].replace("T", " "),
    }
    values = {name: [show(line) for line in all_lines] for name, show in columns.items()}
    told = {name: set(column) - {""} for name, column in values.items()}
    several = len(all_lines) > 1
    shared = [name for name in _SHARED if several and len(told[name]) == 1]
    kept = [name for name in columns if told[name] and name not in shared]
    best = max((line.score for line in all_lines if line.score is not None), default=None)
    bold = frozenset(
        (row, kept.index("score"))
        for row, line in enumerate(all_lines)
        if best is not None and line.score == best
    )
    caption = ", ".join(f"{name} {next(iter(told[name]))}" for name in shared)
    rows = [[values[name][row] or NOTHING for name in kept] for row in range(len(all_lines))]
    return Sheet(f"all of them: {caption}" if caption else "", kept, rows, bold)


def to_csv(all_lines: Sequence[Line]) -> str:
    """Every field of every line."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Line)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(line) for line in all_lines)
    return out.getvalue()
