"""Runs as a list: a line for each, to be filtered and sorted."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter

from advreg.lab.catalogue import is_method, options_of_method
from advreg.lab.kinds.registry import Scale, main_metrics, scale_of
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.groups import split_by
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


def lines(found: Gathered, tuning: bool = False) -> list[Line]:
    """All runs.

    Args:
        found: their records.
        tuning: whether runs that only served to choose settings are listed, too.
    """
    runs = [run for run in found.runs if tuning or not run.is_tuning]
    alike = split_by(_kind, (run.record for run in runs))
    varying = {kind: _varying(records) for kind, records in alike.items()}
    waiting = [
        Line(run=run.name, method=run.method, seed=run.seed, path=run.path.as_posix())
        for run in found.unfinished
    ]
    return [*(_line(run, varying[_kind(run.record)]) for run in runs), *waiting]


def _kind(record: RunRecord) -> _Kind:
    return record.task.name, record.model.name, record.method.name


def _varying(records: Sequence[RunRecord]) -> set[str]:
    """The options in which runs differ and that have an effect."""
    names = {name for names in varying_options(records) for name in names}
    return {name for name in names if not name.startswith(_NO_MATTER)}


def _line(run: Run, varying: Container[str]) -> Line:
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
        settings=_settings(record, varying),
        error=outcome.error or "",
        path=run.path.as_posix(),
    )


def _settings(record: RunRecord, varying: Container[str]) -> str:
    """The settings in which a run differs from others, without the defaults of its method."""
    method = record.method.name
    options = options_of_method(method) if is_method(method) else []
    usual = {option.name: option.default for option in options}
    settings = settings_of(record).items()
    told = {name: value for name, value in settings if name in varying}
    return ", ".join(
        f"{name} {value_text(value)}" for name, value in told.items() if value != usual.get(name)
    )


def chosen(all_lines: Sequence[Line], wanted: Mapping[str, Sequence[object]]) -> list[Line]:
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
    value = attrgetter(name)
    known = [line for line in all_lines if value(line) not in (None, "")]
    unknown = [line for line in all_lines if value(line) in (None, "")]
    return sorted(known, key=value, reverse=reverse) + unknown


def table_of(all_lines: Sequence[Line], left_out: Sequence[str] = ()) -> Table:
    """The table for a terminal; values that all lines share are in its caption.

    The best score is bold if all lines are of one task.
    """
    shared = _shared_values(all_lines)
    hidden = {*shared, *left_out}
    columns = {name: _column(name, all_lines) for name in _COLUMNS if name not in hidden}
    columns = {name: cells for name, cells in columns.items() if set(cells) != {Cell(NOTHING)}}
    told = ", ".join(f"{name} {value}" for name, value in shared.items())
    caption = f"all of them: {told}" if told else ""
    return Table(caption, list(columns), list(zip(*columns.values(), strict=True)))


def _column(name: str, all_lines: Sequence[Line]) -> list[Cell]:
    if name == "score" and len({line.task for line in all_lines} - {""}) == 1:
        return _scores(all_lines)
    return [Cell(_COLUMNS[name](line) or NOTHING) for line in all_lines]


def _shared_values(all_lines: Sequence[Line]) -> dict[str, str]:
    """The values that all lines have in common, if there are several."""
    values = {name: {_COLUMNS[name](line) for line in all_lines} - {""} for name in _SHARED}
    several = len(all_lines) > 1
    return {name: each.pop() for name, each in values.items() if several and len(each) == 1}


def _scores(all_lines: Sequence[Line]) -> list[Cell]:
    """The scores; the best are bold unless all are equal."""
    spreads = [None if line.score is None else Spread(line.score, None, 1) for line in all_lines]
    scale = all_lines[0].scale
    texts = [spread_text(each, decimals=scale.decimals) for each in spreads]
    return best_cells(texts, spreads, scale)


def to_csv(all_lines: Sequence[Line]) -> str:
    """Every field of every line."""
    return csv_text(_FIELDS, [list(asdict(line).values()) for line in all_lines])
