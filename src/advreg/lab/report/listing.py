"""Runs as a list: a line for each, to be filtered and sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from advreg.lab.kinds.registry import Scale, scale_of
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.grouping import MainMetrics
from advreg.lab.report.labels import NOTHING, duration, spread_text, value_text
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Cell, Table, best_cells, csv_text
from advreg.lab.report.variants import settings_of, varying_options
from advreg.records.compare import score_of, seconds_of
from advreg.records.run import RunRecord

_SHARED = ("task", "model", "method", "seed", "status")
# beginnings of the names of settings without an effect, or that epochs and batch_size include
_NO_MATTER = (
    *("save_", "eval_", "logging_", "dataloader_", "per_device_"),
    *("report_to", "disable_tqdm", "num_train_epochs"),
)
_Kind = tuple[str, str, str]  # task, model, method
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
        settings: options in which it differs from other runs of its task, model and method.
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

    @property
    def scale(self) -> Scale:
        """The scale of its score."""
        return scale_of(self.metric.split(", "))


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
    "score": lambda line: "" if line.score is None else f"{line.score:.{line.scale.decimals}f}",
    "training": lambda line: "" if line.seconds is None else duration(line.seconds),
    "started": lambda line: line.started[:16].replace("T", " "),
}


def lines(
    found: Gathered,
    main_metrics: MainMetrics,
    tuning: bool = False,
    defaults: Callable[[str], Mapping[str, Any]] = lambda method: {},
) -> list[Line]:
    """All runs.

    Args:
        found: their records.
        main_metrics: of a task.
        tuning: whether runs that only served to choose settings are listed, too.
        defaults: the default settings of a method, by its name; ``settings`` leaves them out.
    """
    runs = [run for run in found.runs if tuning or not run.is_tuning]
    alike: dict[_Kind, list[RunRecord]] = {}
    for run in runs:
        alike.setdefault(_kind(run.record), []).append(run.record)
    varying = {kind: _varying(records) for kind, records in alike.items()}
    listed = []
    for run in runs:
        usual, settings = defaults(run.record.method.name), settings_of(run.record)
        names = [name for name in settings if name in varying[_kind(run.record)]]
        told = {name: settings[name] for name in names if settings[name] != usual.get(name)}
        listed.append(_line(run, main_metrics, told))
    waiting = [
        Line(run=run.name, method=run.method, seed=run.seed, path=run.folder.as_posix())
        for run in found.unfinished
    ]
    return listed + waiting


def _kind(record: RunRecord) -> _Kind:
    return record.task.name, record.model.name, record.method.name


def _varying(records: Sequence[RunRecord]) -> set[str]:
    """The options in which runs differ and that have an effect."""
    names = {name for names in varying_options(records) for name in names}
    return {name for name in names if not name.startswith(_NO_MATTER)}


def _line(run: Run, main_metrics: MainMetrics, settings: Mapping[str, Any]) -> Line:
    record, outcome = run.record, run.record.outcome
    main = main_metrics(record.task.name, outcome.metrics)
    done = outcome.status == "finished"
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
        settings=", ".join(f"{name} {value_text(value)}" for name, value in settings.items()),
        error=outcome.error or "",
        path=run.folder.as_posix(),
    )


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
    columns = [list(map(_cell, texts[name])) for name in kept]
    if "score" in kept and len(distinct["task"]) == 1:
        columns[kept.index("score")] = _scores(all_lines)
    caption = ", ".join(f"{name} {next(iter(distinct[name]))}" for name in shared)
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(f"all of them: {caption}" if caption else "", kept, rows)


def _cell(text: str) -> Cell:
    return Cell(text or NOTHING)


def _scores(all_lines: Sequence[Line]) -> list[Cell]:
    """The scores; the best are bold unless all are equal."""
    spreads = [None if line.score is None else Spread(line.score, None, 1) for line in all_lines]
    scale = all_lines[0].scale
    texts = [spread_text(each, decimals=scale.decimals) for each in spreads]
    return best_cells(texts, spreads, scale)


def to_csv(all_lines: Sequence[Line]) -> str:
    """Every field of every line."""
    return csv_text(_FIELDS, [list(asdict(line).values()) for line in all_lines])
