"""From gathered records to contests: comparisons, studies, and all other runs by their model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from advreg.core.options import Options
from advreg.lab.kinds.registry import kind_of, main_metrics
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.groups import STANDARD, Contest, Planned, grouped
from advreg.lab.report.labels import method_name, method_order, model_name, task_name
from advreg.lab.report.study import remarks
from advreg.lab.report.variants import label_of, settings_of, varying_options
from advreg.records.compare import ComparedTask, CompareRecord
from advreg.records.run import RunRecord
from advreg.records.study import StudyRecord


def contests(found: Gathered) -> list[Contest]:
    """A contest for each comparison, each study, and each model of the other runs."""
    runs = {run.path: run for run in found.runs}
    made = [of_comparison(record, runs, place) for place, record in found.comparisons.items()]
    made += [of_study(record, runs, place) for place, record in found.studies.items()]
    taken = (*found.comparisons, *found.studies)
    by_model: dict[str, list[Run]] = {}
    for run in found.runs:
        if not run.is_tuning and not any(map(run.path.is_relative_to, taken)):
            by_model.setdefault(run.record.model.name, []).append(run)
    return made + [_of_runs(model, mine) for model, mine in by_model.items()]


def of_comparison(record: CompareRecord, runs: Mapping[Path, Run], place: Path) -> Contest:
    """A comparison with its runs, which are given by folder."""
    model = str(record.settings.get("model", ""))
    planned = [
        Planned(
            each.task, each.method, each.method, each.seed, each.folder,
            runs.get(place / each.folder), each.error,
        )
        for each in record.runs
    ]  # fmt: skip
    unfinished = f"the comparison is {record.status}: numbers cover the runs that finished"
    return Contest(
        title=f"Comparison with {model_name(model)}",
        terms=f"model {model.rpartition('/')[2]}, {_tuning(record)}",
        tasks=record.tasks,
        groups=grouped(planned),
        reference=record.reference,
        notes=[*record.notes, *([] if record.status == "finished" else [unfinished])],
        choices=record.choices,
    )


def _tuning(record: CompareRecord) -> str:
    """The number of candidates that each method was chosen from."""
    tried = dict.fromkeys((run.method for run in record.runs), 0)
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
        groups=grouped(planned),
        reference=study.method,
        notes=remarks(study),
        study=study,
    )


# ---- runs that are part of neither


def _of_runs(model: str, runs: Sequence[Run]) -> Contest:
    runs = sorted(_comparable(runs), key=lambda run: method_order(run.record.method.name))
    kept: dict[tuple[str, str, int], Run] = {}
    for run, (task, label) in zip(runs, _labels(runs), strict=True):
        key = task, label, run.record.training.seed
        kept[key] = max(kept.get(key, run), run, key=_rank)
    planned = [
        Planned(task, label, run.record.method.name, seed, run.name, run, run.record.outcome.error)
        for (task, label, seed), run in kept.items()
    ]
    repeated = len(runs) - len(kept)
    again = (
        f"{repeated} runs repeat others with the same settings and seed: the latest that finished "
        "is shown"
    )
    groups, by_task = grouped(planned), dict[str, list[RunRecord]]()
    for (task, *_), run in kept.items():
        by_task.setdefault(task, []).append(run.record)
    return Contest(
        title=f"Runs of {model_name(model)}",
        terms=f"model {model.rpartition('/')[2]}",
        tasks=[_task(name, records) for name, records in by_task.items()],
        groups=groups,
        reference=_reference({group.label: group.method for group in groups}),
        notes=[again] if repeated else [],
    )


def _task(name: str, records: Sequence[RunRecord]) -> ComparedTask:
    """A task by its name, and by the metrics that its runs have."""
    metrics = {name: value for each in records for name, value in each.outcome.metrics.items()}
    task = max(records, key=_is_finished).task
    return ComparedTask(
        name=name,
        title=name,
        main_metrics=list(main_metrics(task.name, metrics)),
        scored_on=kind_of(task).scored_on(task),
        fingerprint="",
    )


def _is_finished(record: RunRecord) -> bool:
    return record.outcome.status == "finished"


def _rank(run: Run) -> tuple[bool, str]:
    return _is_finished(run.record), run.record.finished or run.record.started


def _data_of(run: Run) -> tuple[str, str | None]:
    return run.record.task.name, run.record.task.fingerprint


def _comparable(runs: Sequence[Run]) -> list[Run]:
    """All runs but those with settings that none finished with, while others of their method did
    on the same data.
    """
    finished: dict[object, list[Options]] = {}
    for run in runs:
        if _is_finished(run.record):
            kind = _data_of(run), run.record.method.name
            finished.setdefault(kind, []).append(settings_of(run.record))

    def is_comparable(run: Run) -> bool:
        mine = settings_of(run.record)
        return mine in finished.get((_data_of(run), run.record.method.name), [mine])

    return list(filter(is_comparable, runs))


def _labels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The name of each run's task, and its label.

    A label has the options in which the runs of its method on the task differ. It has the number
    of epochs, too, if any runs on one task differ in it: they are not on equal terms.
    """
    names = _task_names(map(_data_of, runs))
    keys = [(names[_data_of(run)], run.record.method.name) for run in runs]
    alike: dict[tuple[str, str], list[RunRecord]] = {}
    for key, run in zip(keys, runs, strict=True):
        alike.setdefault(key, []).append(run.record)
    varying = {key: [first for first, *_ in varying_options(each)] for key, each in alike.items()}
    lengths = {
        (task, run.record.training.epochs) for (task, _), run in zip(keys, runs, strict=True)
    }
    always = ["epochs"] if len(lengths) > len({task for task, _ in keys}) else []
    labels = []
    for (task, method), run in zip(keys, runs, strict=True):
        settings = settings_of(run.record)
        options = {name: settings.get(name) for name in (*varying[task, method], *always)}
        labels.append((task, label_of(method, options)))
    return labels


def _task_names(data: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], str]:
    """The names of data sets; different ones of one name have their fingerprints."""
    distinct = list(dict.fromkeys(data))
    names = [name for name, _ in distinct]
    return {
        (name, digest): f"{name} ({(digest or 'none')[:6]})" if names.count(name) > 1 else name
        for name, digest in distinct
    }


def _reference(methods: Mapping[str, str]) -> str:
    """What the others are compared with: ARCH, else the last method that is not Standard."""
    arch = [label for label, method in methods.items() if method == "arch"]
    others = [label for label, method in methods.items() if method != STANDARD]
    return (arch[:1] or others[-1:] or list(methods))[0]
