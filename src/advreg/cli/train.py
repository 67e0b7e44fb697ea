"""``advreg train``: makes the runs with progress bars and prints one table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from advreg.cli.saying import Notices, bars, logs_above, note
from advreg.hf.checkpoint.ranks import is_first_process
from advreg.lab.kinds.architectures import PRESETS
from advreg.lab.kinds.models import SCRATCH, SHORTHANDS
from advreg.lab.kinds.registry import kind_of
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.report.card import card, write_card
from advreg.lab.report.labels import bytes_text, counted
from advreg.lab.runs.plans import choose_folder
from advreg.lab.runs.run import Plan, run
from advreg.lab.runs.settings import RunSettings
from advreg.lab.runs.workloads import load_workload
from advreg.methods import registry
from advreg.records.run import RunRecord


def run_all(settings: RunSettings, resume: bool, console: Console) -> None:
    """Run every method with every seed, then print the comparison."""
    folder = choose_folder(settings, resume)
    workload, notices = load_workload(settings, folder), Notices(console)
    quiet_libraries()
    for text in workload.notes:
        notices(text)
    plans = workload.plans(settings, folder, notices)
    notices(
        f"{workload.title}: {workload.summary}; model {Path(settings.model).name}; "
        f"{counted(len(plans), 'run')} of {counted(settings.epochs, 'epoch')}"
    )
    with bars(console) as progress, logs_above(progress.console):
        waiting = {
            plan.name: progress.add_task(plan.name, total=None, start=False, note="")
            for plan in plans
        }
        done = [_run_one(plan, progress, waiting[plan.name], notices, resume) for plan in plans]
    console.print(comparison(done))
    for text in (*no_better_than_a_constant(done), *next_steps(plans[-1].folder, done[-1])):
        notices(text)


def _run_one(
    plan: Plan, progress: Progress, bar: TaskID, notices: Notices, resume: bool
) -> RunRecord:
    progress.start_task(bar)

    def on_step(step: int, total: int, logs: Mapping[str, float]) -> None:
        progress.update(bar, completed=step, total=total, note=note(logs))

    record = run(plan, on_step, notices, resume)
    leave_card(record, plan.folder / "model")
    steps = record.outcome.timing.get("steps") or 1
    table = kind_of(record.task).table(record)
    heading, score = next(iter(table.columns)), table.scores(record)[0]
    progress.update(bar, completed=steps, total=steps, note=f"{heading} {score:.{table.decimals}f}")
    progress.stop_task(bar)
    return record


def leave_card(record: RunRecord, folder: Path) -> None:
    """Write the model card (rank 0 only), unless the user has written one."""
    if is_first_process() and folder.is_dir():
        main = kind_of(record.task).main_metrics(record.task.name, record.outcome.metrics)
        paper = registry[record.method.name].info.paper
        write_card(folder, card(record, main, paper, _on_the_hub(record.model.name)))


def _on_the_hub(model: str) -> str | None:
    """The name if it may be a hub name: neither a folder nor a built-in name."""
    ours = model in (SCRATCH, *SHORTHANDS, *PRESETS)
    return None if ours or Path(model).exists() or model.startswith((".", "/", "…")) else model


def comparison(done: Sequence[RunRecord]) -> Table:
    """The table: scores over seeds, and the cost of each method relative to Standard."""
    shown = kind_of(done[0].task).table(done[0])
    seeds, time = ("n", "time") if shown.narrow else ("seeds", "step time")
    table = Table(title=shown.title, caption=shown.caption)
    for column in ("method", seeds, *shown.columns, time, "forward", "backward", "cache"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for method, mine in by_method(done).items():
        scores = zip(*map(shown.scores, mine), strict=True)
        table.add_row(
            method,
            str(len(mine)),
            *(spread(values, shown.decimals) for values in scores),
            relative_time(mine, done),
            _mean(mine, "forward"),
            _mean(mine, "backward"),
            bytes_text(max(record.outcome.cache_bytes or 0 for record in mine)),
        )
    if shown.baseline is not None:
        table.add_row(shown.baseline.name, "", f"{shown.baseline.score:.{shown.decimals}f}")
    return table


def by_method(done: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of each method."""
    found: dict[str, list[RunRecord]] = {}
    for record in done:
        found.setdefault(record.method.name, []).append(record)
    return found


def no_better_than_a_constant(done: Sequence[RunRecord]) -> Iterator[str]:
    """A warning for each method whose mean score does not exceed the baseline's."""
    shown = kind_of(done[0].task).table(done[0])
    if shown.baseline is None:
        return
    for method, mine in by_method(done).items():
        score = statistics.fmean(shown.scores(record)[0] for record in mine)
        if not score > shown.baseline.score:
            yield (
                f"WARNING {method} scores {score:.1f}, no better than one answer for every sample "
                f"({shown.baseline.name}: {shown.baseline.score:.1f}). Use a pretrained --model or "
                "more --epochs, and check the labels"
            )


def next_steps(folder: Path, record: RunRecord) -> Iterator[str]:
    """Where the results are, and how to predict with the last run's model."""
    yield f"each run's record.json, items.json.gz and model: {folder.parent}/METHOD-seedN"
    yield f"to predict: advreg predict {folder} < texts.txt (or --input FILE, --output FILE)"
    line = kind_of(record.task).one_line.format(model=folder / "model")
    if line:
        yield f"in Python: {line}"


def spread(values: Sequence[float], decimals: int = 1) -> str:
    """Mean ± sample standard deviation; no deviation for a single value.

    Example:
        >>> spread([50.0, 70.0]), spread([50.0]), spread([31.5, 31.7], 2)
        ('60.0 ± 14.1', '50.0', '31.60 ± 0.14')
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
