"""``advreg train``: carries the runs out under progress bars and prints one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from advreg.cli.saying import Notices, bars, logs_above, note
from advreg.hf.checkpoint.ranks import is_first_process
from advreg.lab.kinds.architectures import PRESETS
from advreg.lab.kinds.fine_tuning import quiet_libraries
from advreg.lab.kinds.models import SCRATCH, SHORTHANDS
from advreg.lab.report.card import card, write_card
from advreg.lab.report.labels import bytes_text, counted
from advreg.lab.runs.classify import Plan, load_data, plan_runs, run
from advreg.lab.runs.plans import choose_folder
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.tasks.understanding import main_metrics
from advreg.methods import registry
from advreg.records.run import RunRecord


def run_all(settings: TrainSettings, resume: bool, console: Console) -> None:
    """Every method with every seed, then the comparison."""
    folder = choose_folder(settings, resume)
    data = load_data(settings)
    plans = plan_runs(settings, data, folder)
    kind = "regression" if data.is_regression else f"{data.num_labels} classes"
    console.print(
        f"[bold]{data.name}[/bold]: {len(data.train)} training and {len(data.dev)} dev samples, "
        f"{kind}; "
        f"model {Path(settings.model).name}; {counted(len(plans), 'run')} of "
        f"{counted(settings.epochs, 'epoch')}",
        highlight=False,
        soft_wrap=True,
    )
    quiet_libraries()
    notices = Notices(console)
    with bars(console) as progress, logs_above(progress.console):
        waiting = {
            plan.name: progress.add_task(plan.name, total=None, start=False, note="")
            for plan in plans
        }
        done = [_run_one(plan, progress, waiting[plan.name], notices, resume) for plan in plans]
    console.print(comparison(done))
    console.print(
        f"each run's record.json, model and checkpoints: {folder}/METHOD-seedN",
        highlight=False,
        soft_wrap=True,
    )


def _run_one(
    plan: Plan, progress: Progress, bar: TaskID, notices: Notices, resume: bool
) -> RunRecord:
    progress.start_task(bar)

    def on_step(_: Plan, step: int, total: int, logs: Mapping[str, float]) -> None:
        progress.update(bar, completed=step, total=total, note=note(logs))

    record = run(plan, on_step, notices, resume)
    leave_card(record, plan.folder / "model")
    steps = record.outcome.timing.get("steps") or 1
    score, value = main_score(record)
    progress.update(bar, completed=steps, total=steps, note=f"{score} {value:.3f}")
    progress.stop_task(bar)
    return record


def leave_card(record: RunRecord, folder: Path) -> None:
    """Put a card into a model's folder, unless somebody's own is there; of many processes one
    does.
    """
    if is_first_process() and folder.is_dir():
        main = main_metrics(record.task.name, record.outcome.metrics)
        write_card(
            folder,
            card(
                record,
                main,
                registry[record.method.name].info.paper,
                _on_the_hub(record.model.name),
            ),
        )


def _on_the_hub(model: str) -> str | None:
    """The name, if it is one that the hub knows: neither a folder nor one of our own."""
    ours = model in (SCRATCH, *SHORTHANDS, *PRESETS)
    return None if ours or Path(model).exists() or model.startswith((".", "/", "…")) else model


def comparison(done: Sequence[RunRecord]) -> Table:
    """The table: scores over seeds, and what each method costs beside Standard."""
    score, _ = main_score(done[0])
    title = f"{done[0].task.name}: dev {score}, mean ± sd over seeds"
    table = Table(
        title=title, caption="step time: relative to Standard; forward, backward: passes per step"
    )
    short = score.split(" of ")[0]  # which ones a mean is of is in the title
    return filled(
        table,
        ("seeds", short, "step time"),
        done,
        lambda record: [main_score(record)[1]],
        decimals=3,
    )


def filled(
    table: Table,
    names: Sequence[str],
    done: Sequence[RunRecord],
    scores: Callable[[RunRecord], list[float]],
    decimals: int,
) -> Table:
    """The table with a row for each method.

    Args:
        table: without columns.
        names: of the columns that count seeds, hold a score, and hold the time of a step.
        done: all runs.
        scores: of a run.
        decimals: of the scores.
    """
    for column in ("method", *names, "forward", "backward", "cache"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for method in dict.fromkeys(record.method.name for record in done):
        mine = [record for record in done if record.method.name == method]
        table.add_row(
            method,
            str(len(mine)),
            *(spread(values, decimals) for values in zip(*map(scores, mine), strict=True)),
            relative_time(mine, done),
            _mean(mine, "forward"),
            _mean(mine, "backward"),
            bytes_text(max(record.outcome.cache_bytes or 0 for record in mine)),
        )
    return table


def main_score(record: RunRecord) -> tuple[str, float]:
    """The score a run is judged by: accuracy, or Pearson's correlation; of a named task the mean of
    its main ones.
    """
    metrics = record.outcome.metrics
    names = main_metrics(record.task.name, metrics) or ("pearson",)
    values = [float("nan") if (value := metrics.get(name)) is None else value for name in names]
    return names[0] if len(names) == 1 else f"mean of {', '.join(names)}", statistics.fmean(values)


def spread(values: Sequence[float], decimals: int = 3) -> str:
    """Mean ± sample standard deviation; no deviation for a single value.

    Example:
        >>> spread([0.5, 0.7]), spread([0.5]), spread([31.5, 31.7], 2)
        ('0.600 ± 0.141', '0.500', '31.60 ± 0.14')
    """
    mean = f"{statistics.fmean(values):.{decimals}f}"
    return f"{mean} ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else mean


def relative_time(mine: Sequence[RunRecord], done: Sequence[RunRecord]) -> str:
    """Time per step over Standard's with the same seed, averaged over seeds."""
    plain = {record.training.seed: record for record in done if record.method.name == "standard"}
    ratios = [
        _seconds(record) / _seconds(plain[record.training.seed])
        for record in mine
        if record.training.seed in plain and _seconds(plain[record.training.seed]) > 0
    ]
    return f"{statistics.fmean(ratios):.2f}" if ratios else "–"


def _mean(records: Sequence[RunRecord], kind: str) -> str:
    return f"{statistics.fmean(record.outcome.passes.get(kind) or 0.0 for record in records):.2f}"


def _seconds(record: RunRecord) -> float:
    return record.outcome.timing.get("seconds_per_step") or 0.0
