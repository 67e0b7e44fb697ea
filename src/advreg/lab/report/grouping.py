"""From gathered records to contests: comparisons, studies, and all other runs by their model."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from advreg.core.options import Options
from advreg.lab.kinds.registry import kind_of, main_metrics
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.groups import STANDARD, Contest, Planned, grouped, split_by
from advreg.lab.report.labels import method_name, method_order, model_name, task_name
from advreg.lab.report.study import remarks
from advreg.lab.report.variants import label_of, settings_of, varying_options
from advreg.records.compare import ComparedTask, CompareRecord
from advreg.records.study import StudyRecord

Data = tuple[str, str | None]  # the name of a task and the fingerprint of its data


def contests(found: Gathered) -> list[Contest]:
    """A contest for each comparison, each study, and each model of the other runs."""
    runs = {run.path: run for run in found.runs}
    made = [of_comparison(record, runs, place) for place, record in found.comparisons.items()]
    made += [of_study(record, runs, place) for place, record in found.studies.items()]
    taken = (*found.comparisons, *found.studies)
    others = [
        run
        for run in found.runs
        if not run.is_tuning and not any(map(run.path.is_relative_to, taken))
    ]
    by_model = split_by(lambda run: run.record.model.name, others)
    return made + [_of_runs(model, mine) for model, mine in by_model.items()]


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
        groups=grouped(planned),
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
    groups, by_task = grouped(planned), split_by(lambda each: each.task, planned)
    return Contest(
        title=f"Runs of {model_name(model)}",
        terms=f"model {model.rpartition('/')[2]}",
        tasks=[_task(name, each) for name, each in by_task.items()],
        groups=groups,
        reference=_reference({group.label: group.method for group in groups}),
        notes=[again] if repeated else [],
    )


def _task(name: str, planned: Sequence[Planned]) -> ComparedTask:
    """A task by its name, and by the metrics that its runs have."""
    runs = [each.run for each in planned if each.run is not None]
    metrics: Options = dict(ChainMap(*(dict(run.record.outcome.metrics) for run in runs)))
    task = max(runs, key=lambda run: run.is_finished).record.task
    return ComparedTask(
        name=name,
        title=name,
        main_metrics=list(main_metrics(task.name, metrics)),
        scored_on=kind_of(task).scored_on(task),
        fingerprint="",
    )


def _rank(run: Run) -> tuple[bool, str]:
    return run.is_finished, run.record.finished or run.record.started


def _data_of(run: Run) -> Data:
    return run.record.task.name, run.record.task.fingerprint


def _kind_of(run: Run) -> tuple[Data, str]:
    return _data_of(run), run.record.method.name


def _comparable(runs: Sequence[Run]) -> list[Run]:
    """All runs but those with settings that none finished with, while others of their method did
    on the same data.
    """
    finished = split_by(_kind_of, (run for run in runs if run.is_finished))
    settings = {kind: [settings_of(run.record) for run in each] for kind, each in finished.items()}
    return [
        run
        for run in runs
        if _kind_of(run) not in settings or settings_of(run.record) in settings[_kind_of(run)]
    ]


def _labels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The name of each run's task, and its label.

    A label has the options in which the runs of its method on the task differ. It has the number
    of epochs, too, if any runs on one task differ in it: they are not on equal terms.
    """
    names = _task_names(map(_data_of, runs))
    lengths = {(_data_of(run), run.record.training.epochs) for run in runs}
    always = ["epochs"] if len(lengths) > len(names) else []
    shown = {kind: _first_varying(each) for kind, each in split_by(_kind_of, runs).items()}
    labels = []
    for run in runs:
        settings = settings_of(run.record)
        options = {name: settings.get(name) for name in (*shown[_kind_of(run)], *always)}
        labels.append((names[_data_of(run)], label_of(run.record.method.name, options)))
    return labels


def _first_varying(runs: Sequence[Run]) -> list[str]:
    """The first of the options that vary together, for all that vary."""
    return [first for first, *_ in varying_options([run.record for run in runs])]


def _task_names(data: Iterable[Data]) -> dict[Data, str]:
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
