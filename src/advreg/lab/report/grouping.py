"""From gathered records to contests: comparisons, studies, and all other runs by their model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advreg.lab.kinds.registry import kind_of
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.groups import STANDARD, Contest, Planned, grouped
from advreg.lab.report.labels import method_name, method_order, model_name, task_name
from advreg.lab.report.study import remarks
from advreg.lab.report.variants import label_of, settings_of, varying_options
from advreg.records.compare import ComparedTask, CompareRecord
from advreg.records.run import RunRecord
from advreg.records.study import StudyRecord

MainMetrics = Callable[
    [str, Mapping[str, Any]], Sequence[str]
]  # of a task by its name, and of the metrics that were measured


def contests(found: Gathered, main_metrics: MainMetrics) -> list[Contest]:
    """A contest for each comparison, each study, and each model of the other runs."""
    runs = {run.folder: run for run in found.runs}
    made = [of_comparison(record, runs, place) for place, record in found.comparisons.items()]
    made += [of_study(record, runs, place) for place, record in found.studies.items()]
    taken = (*found.comparisons, *found.studies)
    by_model: dict[str, list[Run]] = {}
    for run in found.runs:
        if not run.is_tuning and not any(map(run.folder.is_relative_to, taken)):
            by_model.setdefault(run.record.model.name, []).append(run)
    return made + [_of_runs(model, mine, main_metrics) for model, mine in by_model.items()]


def of_comparison(record: CompareRecord, runs: Mapping[Path, Run], place: Path) -> Contest:
    """A comparison with its runs, which are given by folder."""
    model = str(record.settings.get("model", ""))
    planned = [
        Planned(
            each.task, record.controls.get(each.method, each.method), each.method, each.seed,
            each.folder, runs.get(place / each.folder), each.error,
        )
        for each in record.runs
    ]  # fmt: skip
    unfinished = f"the comparison is {record.status}: numbers cover the runs that finished"
    return Contest(
        title=f"Comparison with {model_name(model)}",
        terms=f"model {model.rpartition('/')[2]}, {_tuning(record)}",
        tasks=record.tasks,
        groups=grouped("comparison", planned),
        reference=record.reference,
        notes=[*record.notes, *([] if record.status == "finished" else [unfinished])],
        choices=record.choices,
        compared=record,
    )


def _tuning(record: CompareRecord) -> str:
    """The number of candidates that each method was chosen from."""
    methods = (run.method for run in record.runs if run.method not in record.controls)
    tried = dict.fromkeys(methods, 0)
    for choice in record.choices:
        tried[choice.method] = max(tried.get(choice.method, 0), len(choice.candidates))
    most = max(tried.values(), default=0)
    up_to = "" if min(tried.values(), default=0) == most else "up to "
    return f"best of {up_to}{most} candidates" if most else "no tuning"


def of_study(study: StudyRecord, runs: Mapping[Path, Run], place: Path) -> Contest:
    """A study with its runs; labels name the options that differ from the defaults."""
    task, model = study.task, model_name(str(study.task.settings.get("model", "")))
    planned = [
        Planned(
            task.name, label_of(variant.method, variant.changes), variant.method,
            run.seed, run.folder, runs.get(place / run.folder), run.error,
        )
        for variant in sorted(study.variants, key=lambda each: method_order(each.method))
        for run in variant.runs
    ]  # fmt: skip
    where = f"{task_name(task.name, task.title)} with {model}"
    return Contest(
        title=f"Study of {method_name(study.method)} on {where}",
        terms=f"model {model}",
        tasks=[task],
        groups=grouped("study", planned),
        reference=study.method,
        notes=remarks(study),
        study=study,
    )


# ---- runs that are part of neither


def _of_runs(model: str, runs: Sequence[Run], main_metrics: MainMetrics) -> Contest:
    runs = sorted(_comparable(runs), key=lambda run: method_order(run.record.method.name))
    kept: dict[tuple[str, str, int], Run] = {}
    for run, task, label in _labelled(runs):
        key = task, label, run.record.training.seed
        if key not in kept or _rank(run) > _rank(kept[key]):
            kept[key] = run
    planned = [
        Planned(task, label, run.record.method.name, seed, run.name, run, run.record.outcome.error)
        for (task, label, seed), run in kept.items()
    ]
    repeated = len(runs) - len(kept)
    again = (
        f"{repeated} runs repeat others with the same settings and seed: the latest that finished "
        "is shown"
    )
    groups = grouped("runs", planned)
    tasks = {task: [run for key, run in kept.items() if key[0] == task] for task, *_ in kept}
    return Contest(
        title=f"Runs of {model_name(model)}",
        terms=f"model {model.rpartition('/')[2]}",
        tasks=[_task(name, mine, main_metrics) for name, mine in tasks.items()],
        groups=groups,
        reference=_reference({group.label: group.method for group in groups}),
        notes=[again] if repeated else [],
    )


def _task(name: str, runs: Sequence[Run], main_metrics: MainMetrics) -> ComparedTask:
    metrics: dict[str, Any] = {}
    for run in runs:
        metrics |= run.record.outcome.metrics
    finished = [run.record.task for run in runs if run.record.outcome.status == "finished"]
    task = next(iter(finished), runs[0].record.task)
    return ComparedTask(
        name=name,
        title=name,
        main_metrics=list(main_metrics(task.name, metrics)),
        scored_on=kind_of(task).scored_on(task),
        fingerprint="",
    )


def _rank(run: Run) -> tuple[bool, str]:
    record = run.record
    return record.outcome.status == "finished", record.finished or record.started


def _data_of(run: Run) -> tuple[str, str | None]:
    return run.record.task.name, run.record.task.fingerprint


def _comparable(runs: Sequence[Run]) -> list[Run]:
    """All runs but those with settings that none finished with, while others of their method did
    on the same data.
    """
    finished: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for run in runs:
        if run.record.outcome.status == "finished":
            mine = finished.setdefault((*_data_of(run), run.record.method.name), [])
            mine.append(settings_of(run.record))

    def is_comparable(run: Run) -> bool:
        others = finished.get((*_data_of(run), run.record.method.name))
        return others is None or settings_of(run.record) in others

    return list(filter(is_comparable, runs))


def _labelled(runs: Sequence[Run]) -> Iterator[tuple[Run, str, str]]:
    """Each run with the name of its task and its label.

    A label has the options in which the runs of its method on the task differ. It has the number
    of epochs, too, if any runs on one task differ in it: they are not on equal terms.
    """
    names = _task_names(map(_data_of, runs))
    alike: dict[tuple[str, str], list[RunRecord]] = {}
    lengths: dict[str, set[float]] = {}
    for run in runs:
        task, record = names[_data_of(run)], run.record
        alike.setdefault((task, record.method.name), []).append(record)
        lengths.setdefault(task, set()).add(record.training.epochs)
    always = ["epochs"] if any(len(epochs) > 1 for epochs in lengths.values()) else []
    shown = {
        key: dict.fromkeys([*(names[0] for names in varying_options(records)), *always])
        for key, records in alike.items()
    }
    for run in runs:
        task, method = names[_data_of(run)], run.record.method.name
        settings = settings_of(run.record)
        options = {name: settings.get(name) for name in shown[task, method]}
        yield run, task, label_of(method, options)


def _task_names(data: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], str]:
    """The names of data sets; different ones of one name have their fingerprints."""
    distinct = list(dict.fromkeys(data))
    names = [name for name, _ in distinct]
    return {
        (name, digest): f"{name} ({(digest or 'none')[:6]})" if names.count(name) > 1 else name
        for name, digest in distinct
    }


def _reference(methods: Mapping[str, str]) -> str:
    """What the others are compared with: Standard, else the last method."""
    standard = [label for label, method in methods.items() if method == STANDARD]
    return (standard[:1] or list(methods)[-1:])[0]
