"""Runs that can be compared with each other: those of a comparison or a study, or any that share a
model and tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from advreg.lab.report import compare
from advreg.lab.report.compare import STANDARD, Results
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.labels import method_name, method_order, task_name, value_text
from advreg.lab.report.study import remarks
from advreg.records.compare import ComparedRun, ComparedTask, CompareRecord, score_of
from advreg.records.run import RunRecord
from advreg.records.study import StudyRecord

MainMetrics = Callable[
    [str, Mapping[str, Any]], Sequence[str]
]  # of a task by its name, and what was measured

_NOT_SETTINGS = ("seed", "data_seed", "logging_steps", "eval_steps", "save_steps")


@dataclass(frozen=True)
class Contest:
    """Runs by task, label and seed; a label is a method, with the options that tell its settings
    apart if need be.

    Args:
        title: of the section.
        record: what was compared; made up for runs that were not part of a comparison.
        runs: all that finished.
        methods: the method of each label.
        study: what was varied, if that was asked for; else :func:`studies` finds out.
    """

    title: str
    record: CompareRecord
    runs: Mapping[tuple[str, str, int], Run]
    methods: Mapping[str, str]
    study: StudyRecord | None = None

    @cached_property
    def records(self) -> dict[tuple[str, str, int], RunRecord]:
        return {key: run.record for key, run in self.runs.items()}

    @cached_property
    def results(self) -> Results:
        return compare.results(self.record, self.records)

    @property
    def has_variants(self) -> bool:
        """Does a method take part with several settings?"""
        return len(set(self.methods.values())) < len(self.methods)

    def of(self, task: str) -> dict[str, list[Run]]:
        """The runs on a task, by label."""
        found: dict[str, list[Run]] = {}
        for (name, label, _), run in self.runs.items():
            if name == task:
                found.setdefault(label, []).append(run)
        return found

    def score(self, task: str, run: Run) -> float | None:
        """A run's one number, in percent."""
        return score_of(run.record.outcome.metrics, self.task(task).main_metrics)

    def task(self, name: str) -> ComparedTask:
        """A task by its name."""
        (found,) = (each for each in self.record.tasks if each.name == name)
        return found


def contests(found: Gathered, main_metrics: MainMetrics) -> list[Contest]:
    """Each comparison and study, and of all other finished runs those with the same model
    together.
    """
    made = [_of_comparison(found, folder) for folder in found.comparisons]
    made += [_of_study(found, folder) for folder in found.studies]
    taken = (*found.comparisons, *found.studies)
    loose = [
        run
        for run in found.runs
        if not run.is_tuning and not any(run.folder.is_relative_to(folder) for folder in taken)
    ]
    by_model: dict[str, list[Run]] = {}
    for run in loose:
        by_model.setdefault(run.record.model.name, []).append(run)
    return made + [_of_loose_runs(model, runs, main_metrics) for model, runs in by_model.items()]


def _of_comparison(found: Gathered, folder: Path) -> Contest:
    record = found.comparisons[folder]
    title = f"Comparison with {model_name(str(record.settings.get('model', '')))}"
    return Contest(
        title,
        record,
        _finished(found, folder, record),
        {each.method: each.method for each in record.runs},
    )


def _of_study(found: Gathered, folder: Path) -> Contest:
    """A label for each variant, with what differs from the default settings."""
    study = found.studies[folder]
    variants = sorted(study.variants, key=lambda variant: method_order(variant.method))
    labels = {variant.name: _label(variant.method, variant.changes) for variant in variants}
    methods = {labels[variant.name]: variant.method for variant in variants}
    task, model = study.task, str(study.task.settings.get("model", ""))
    record = CompareRecord(
        status="finished",  # its remarks say if it is not
        settings={"model": model},
        grid={},
        search={},
        reference=study.method,
        tasks=[task],
        choices=[],
        runs=[
            ComparedRun(
                task=task.name,
                method=labels[each.name],
                seed=run.seed,
                folder=run.folder,
                error=run.error,
            )
            for each in variants
            for run in each.runs
        ],
        notes=remarks(study),
        environment=study.environment,
        started=study.started,
        finished=study.finished,
    )
    where = f"{task_name(task.name, task.title)} with {model_name(model)}"
    title = f"Study of {method_name(study.method)} on {where}"
    return Contest(title, record, _finished(found, folder, record), methods, study)


def _finished(
    found: Gathered, folder: Path, record: CompareRecord
) -> dict[tuple[str, str, int], Run]:
    """The runs of a record, in its folder, that finished."""
    by_folder = {run.folder: run for run in found.runs}
    return {
        (entry.task, entry.method, entry.seed): run
        for entry in record.runs
        if (run := by_folder.get(folder / entry.folder)) is not None
        and run.record.outcome.status == "finished"
    }


def _of_loose_runs(model: str, runs: Sequence[Run], main_metrics: MainMetrics) -> Contest:
    runs = sorted(_comparable(runs), key=lambda run: method_order(run.record.method.name))
    names = _task_names(runs)
    labels = _labels([(names[_data_of(run)], run) for run in runs])
    keyed: dict[tuple[str, str, int], Run] = {}
    repeated = 0
    for run, label in zip(runs, labels, strict=True):
        key = names[_data_of(run)], label, run.record.training.seed
        repeated += key in keyed
        if key not in keyed or _is_better(run, keyed[key]):
            keyed[key] = run
    methods = {label: run.record.method.name for (_, label, _), run in keyed.items()}
    finished = {key: run for key, run in keyed.items() if run.record.outcome.status == "finished"}
    tasks = []
    for task in dict.fromkeys(key[0] for key in keyed):
        mine = [run.record for key, run in finished.items() if key[0] == task]
        metrics = {name: value for record in mine for name, value in record.outcome.metrics.items()}
        main = list(main_metrics(mine[0].task.name if mine else task, metrics))
        scored = next(
            (
                str(record.task.details["scored"])
                for record in mine
                if "scored" in record.task.details
            ),
            "dev",
        )
        tasks.append(
            ComparedTask(name=task, title=task, main_metrics=main, scored_on=scored, fingerprint="")
        )
    again = (
        f"{repeated} runs repeat others with the same settings and seed: the latest that finished "
        "is shown"
    )
    record = CompareRecord(
        status="finished",
        settings={"model": model},
        grid={},
        search={},
        reference=_reference(methods),
        tasks=tasks,
        choices=[],
        runs=[
            ComparedRun(
                task=task, method=label, seed=seed, folder=run.name, error=run.record.outcome.error
            )
            for (task, label, seed), run in keyed.items()
        ],
        notes=[again] if repeated else [],
        environment={},
        started=min(run.record.started for run in runs),
        finished=max(run.record.finished or run.record.started for run in runs),
    )
    return Contest(f"Runs of {model_name(model)}", record, finished, methods)


def _comparable(runs: Sequence[Run]) -> list[Run]:
    """All but failed runs with settings that nothing finished with, if its method finished with
    others on that data.
    """
    finished: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for run in runs:
        if run.record.outcome.status == "finished":
            finished.setdefault((*_data_of(run), run.record.method.name), []).append(
                settings_of(run.record)
            )
    kept = []
    for run in runs:
        others = finished.get((*_data_of(run), run.record.method.name), [])
        if not others or settings_of(run.record) in others:
            kept.append(run)
    return kept


def _is_better(run: Run, other: Run) -> bool:
    mine, theirs = (
        (each.record.outcome.status == "finished", each.record.finished or each.record.started)
        for each in (run, other)
    )
    return mine > theirs


def _data_of(run: Run) -> tuple[str, str | None]:
    return run.record.task.name, run.record.task.fingerprint


def _task_names(runs: Sequence[Run]) -> dict[tuple[str, str | None], str]:
    """Names of the data; those of one name that differ are told apart by their fingerprints."""
    data = dict.fromkeys(map(_data_of, runs))
    prints = {name: [each for each in data if each[0] == name] for name, _ in data}
    return {
        each: each[0] if len(prints[each[0]]) == 1 else f"{each[0]} ({(each[1] or 'none')[:6]})"
        for each in data
    }


def _reference(methods: Mapping[str, str]) -> str:
    """What the others are compared with: ARCH, else the last method that is not Standard."""
    arch = [label for label, method in methods.items() if method == "arch"]
    others = [label for label, method in methods.items() if method != STANDARD]
    return (arch[:1] or others[-1:] or list(methods))[0]


def _labels(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """A label for each run on a task: its method, and the options in which that method's runs on
    the task differ.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for task, run in runs:
        groups.setdefault((task, run.record.method.name), []).append(run.record)
    varying = {key: [names[0] for names in varying_options(group)] for key, group in groups.items()}
    found = []
    for task, run in runs:
        record = run.record
        options = settings_of(record)
        different = varying[task, record.method.name]
        found.append(_label(record.method.name, {name: options.get(name) for name in different}))
    return found


def _label(method: str, options: Mapping[str, Any]) -> str:
    """A method, and the options that tell its settings apart from others; without any, its bare
    name.
    """
    told = [f"{name} {value_text(value)}" for name, value in options.items()]
    return ", ".join([method_name(method), *told]) if told else method


# ---- settings


def settings_of(record: RunRecord) -> dict[str, Any]:
    """Everything that was chosen but the seed: the method's options, then those of the training."""
    training = record.training
    general = {
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "precision": training.precision,
    }
    chosen = {**record.method.settings, **general, **training.more}
    return {name: value for name, value in chosen.items() if name not in _NOT_SETTINGS}


def varying_options(records: Sequence[RunRecord]) -> list[list[str]]:
    """The options in which these runs differ; those that change together (ε and η, say) are in one
    list.

    Options of the method come first, so that a list's first name is the one to show.
    """
    columns: dict[str, list[str]] = {}
    chosen = [settings_of(record) for record in records]
    for name in dict.fromkeys(name for settings in chosen for name in settings):
        columns[name] = [json.dumps(settings.get(name), sort_keys=True) for settings in chosen]
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, column in columns.items():
        if len(set(column)) > 1:
            order = list(dict.fromkeys(column))
            groups.setdefault(tuple(order.index(value) for value in column), []).append(name)
    return list(groups.values())


def model_name(name: str) -> str:
    """The last part of a model's name or path."""
    return name.rstrip("/").rpartition("/")[2] or "a model"


# ---- studies


@dataclass(frozen=True)
class StudyLine:
    """Scores by the value of one option, everything else being equal; each value has the scores of
    its seeds.
    """

    label: str
    scores: Mapping[Any, Sequence[float]]


@dataclass(frozen=True)
class Study:
    """What one option of a method does on a task.

    Args:
        task: its name.
        method: the method whose option it is.
        option: its name; ``with_it`` are the options that change together with it.
        lines: one, or several where further options vary.
        references: scores of SMART and Standard on the task, where they have one setting.
    """

    task: str
    method: str
    option: str
    with_it: Sequence[str]
    lines: Sequence[StudyLine]
    references: Mapping[str, Sequence[float]]


def studies(contest: Contest) -> list[Study]:
    """Every option that takes several values while all else is equal."""
    found = []
    for task in contest.results.tasks:
        by_label = contest.of(task)
        for method in dict.fromkeys(contest.methods[label] for label in by_label):
            runs = [
                run
                for label, mine in by_label.items()
                if contest.methods[label] == method
                for run in mine
            ]
            options = varying_options([run.record for run in runs])
            for names in options:
                others = [other[0] for other in options if other is not names]
                lines = _lines(contest, task, method, runs, names[0], others)
                if lines:
                    own = [name for name in names[1:] if name in runs[0].record.method.settings]
                    found.append(
                        Study(
                            task, method, names[0], own, lines, _references(contest, task, method)
                        )
                    )
    return found


def _lines(
    contest: Contest,
    task: str,
    method: str,
    runs: Sequence[Run],
    option: str,
    others: Sequence[str],
) -> list[StudyLine]:
    groups: dict[str, dict[Any, list[float]]] = {}
    for run in runs:
        settings = settings_of(run.record)
        label = ", ".join(
            [method_name(method), *(f"{name} {value_text(settings.get(name))}" for name in others)]
        )
        score = contest.score(task, run)
        if score is not None:
            groups.setdefault(label, {}).setdefault(_hashable(settings.get(option)), []).append(
                score
            )
    return [
        StudyLine(label, dict(sorted(scores.items(), key=lambda item: _order(item[0]))))
        for label, scores in groups.items()
        if len(scores) > 1
    ]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value)


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then words; ``None`` (never, or none at all) last."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))


def _references(contest: Contest, task: str, method: str) -> dict[str, list[float]]:
    found = {}
    for name in ("smart", STANDARD):
        if name in contest.methods and name != method:
            scores = [contest.score(task, run) for run in contest.of(task).get(name, [])]
            known = [score for score in scores if score is not None and math.isfinite(score)]
            if known:
                found[name] = known
    return found
