"""Runs as a list: a line for each, to be filtered and sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.grouping import MainMetrics
from advreg.lab.report.labels import NOTHING, duration, value_text
from advreg.lab.report.tables import Cell, Table, csv_text
from advreg.lab.report.variants import settings_of, varying_options
from advreg.records.compare import score_of, seconds_of
from advreg.records.run import RunRecord

_SHARED = ("task", "model", "method", "seed", "status")
# beginnings of the names of settings without an effect, or that epochs and batch_size include
_NO_MATTER = (
    *("save_", "eval_", "logging_", "dataloader_", "per_device_"),
    *("report_to", "disable_tqdm", "num_train_epochs"),
)
STATUSES = ("finished", "failed", "unfinished")


@dataclass(frozen=True)
class Line:
    """A run.

    Args:
        run: the end of its folder's path, long enough to be unique.
        task, model, method, seed: what was run.
        status: finished, failed or unfinished (still running, or stopped).
        score: the mean of the task's main metrics, out of 100.
        metric: their names.
        seconds: of its training steps.
        started: in UTC.
        settings: options in which it differs from other runs of its method.
        error: why it failed.
        path: its folder; begins with the folder that was searched, as it was given.
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


_FIELDS = tuple(field.name for field in fields(Line))
SORTED_BY = tuple(name for name in _FIELDS if name not in ("settings", "error", "metric"))
_COLUMNS: dict[str, Callable[[Line], str]] = {
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


def lines(found: Gathered, main_metrics: MainMetrics, tuning: bool = False) -> list[Line]:
    """All runs; with those that only served to choose settings if ``tuning``."""
    runs = [run for run in found.runs if tuning or not run.is_tuning]
    by_method: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_method.setdefault(run.record.method.name, []).append(run.record)
    varying = {
        method: [names[0] for names in varying_options(records)]
        for method, records in by_method.items()
    }
    listed = [_line(run, main_metrics, varying[run.record.method.name]) for run in runs]
    return listed + [
        Line(run=run.name, method=run.method, seed=run.seed, path=run.folder.as_posix())
        for run in found.unfinished
    ]


def _line(run: Run, main_metrics: MainMetrics, varying: Sequence[str]) -> Line:
    record, outcome = run.record, run.record.outcome
    main = main_metrics(record.task.name, outcome.metrics)
    settings, done = settings_of(record), outcome.status == "finished"
    return Line(
        run=run.name,
        task=record.task.name,
        model=record.model.name,
        method=record.method.name,
        seed=record.training.seed,
        status="unfinished" if outcome.status == "running" else outcome.status,
        score=score_of(outcome.metrics, main) if done else None,
        metric=", ".join(main),
        seconds=seconds_of(record) if done else None,
        started=record.started,
        settings=_text({option: settings.get(option) for option in varying}),
        error=outcome.error or "",
        path=run.folder.as_posix(),
    )


def _text(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in options.items())


def with_brief_settings(
    listed: Sequence[Line], found: Gathered, defaults: Callable[[str], Mapping[str, Any]]
) -> list[Line]:
    """The lines with the settings that distinguish them.

    Those differ between the listed runs of a task, a model and a method, are not at their
    defaults, and have an effect.

    Args:
        listed: some of the lines.
        found: what they were made of.
        defaults: the default settings of a method, by its name.
    """
    records = {run.folder.as_posix(): run.record for run in found.runs}
    alike: dict[tuple[str, str, str], list[RunRecord]] = {}
    for line in listed:
        if line.path in records:
            kind = (line.task, line.model, line.method)
            alike.setdefault(kind, []).append(records[line.path])
    varying = {
        kind: {name for names in varying_options(mine) for name in names}
        for kind, mine in alike.items()
    }

    def brief(line: Line) -> str:
        usual, names = defaults(line.method), varying[line.task, line.model, line.method]
        settings = settings_of(records[line.path])
        shown = {
            name: value
            for name, value in settings.items()
            if name in names and value != usual.get(name) and not name.startswith(_NO_MATTER)
        }
        return _text(shown)

    return [
        replace(line, settings=brief(line)) if line.path in records else line for line in listed
    ]


def chosen(all_lines: Sequence[Line], wanted: Mapping[str, Sequence[Any]]) -> list[Line]:
    """The lines that have one of the wanted values in every field; no values stand for all."""

    def fits(line: Line) -> bool:
        return all(not values or getattr(line, name) in values for name, values in wanted.items())

    return list(filter(fits, all_lines))


def ordered(all_lines: Sequence[Line], by: str) -> list[Line]:
    """By a field, the highest first with a minus before it; lines without a value come last."""
    name, reverse = by.removeprefix("-"), by.startswith("-")
    if name not in SORTED_BY:
        raise ValueError(
            f"sort must be one of {', '.join(SORTED_BY)}, with - before it for the highest first, "
            f"got '{by}'"
        )
    known = [line for line in all_lines if getattr(line, name) not in (None, "")]
    unknown = [line for line in all_lines if getattr(line, name) in (None, "")]
    return sorted(known, key=lambda line: getattr(line, name), reverse=reverse) + unknown


def table_of(all_lines: Sequence[Line]) -> Table:
    """The table for a terminal; values that all lines share are in its caption.

    The best score is bold if all lines are of one task.
    """
    texts = {name: [show(line) for line in all_lines] for name, show in _COLUMNS.items()}
    distinct = {name: set(column) - {""} for name, column in texts.items()}
    shared = [name for name in _SHARED if len(all_lines) > 1 and len(distinct[name]) == 1]
    kept = [name for name in _COLUMNS if distinct[name] and name not in shared]
    scores = {line.score for line in all_lines if line.score is not None}
    best = max(scores) if len(scores) > 1 and len(distinct["task"]) == 1 else None

    def cell(name: str, row: int) -> Cell:
        is_best = name == "score" and best is not None and all_lines[row].score == best
        return Cell(texts[name][row] or NOTHING, is_best)

    caption = ", ".join(f"{name} {next(iter(distinct[name]))}" for name in shared)
    rows = [[cell(name, row) for name in kept] for row in range(len(all_lines))]
    return Table(f"all of them: {caption}" if caption else "", kept, rows)


def to_csv(all_lines: Sequence[Line]) -> str:
    """Every field of every line."""
    return csv_text(_FIELDS, [list(asdict(line).values()) for line in all_lines])
