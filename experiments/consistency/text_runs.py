"""One run on texts: the samples of a seed, the training, and the scores of what came
out.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import builtin_data
import numpy as np
import torch
from contests import CONTESTS
from stages import Planned

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.averaging import MovingAverage
from advreg.lab.kinds.calibration import calibration, fit_temperature
from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.classification.textdata import Example, TextData
from advreg.lab.kinds.classification.understanding import load_task
from advreg.lab.kinds.classification.workload import Texts
from advreg.lab.kinds.training import quiet_libraries, report_steps
from advreg.lab.runs.run import Plan, begin_record
from advreg.lab.runs.settings import DOCSTRINGS, TrainSettings
from advreg.lab.runs.training_presets import training_preset
from advreg.lab.search.pool import JobReporter
from advreg.methods import preset
from advreg.methods.base import memory_bytes
from advreg.records import run as records

VALIDATE_ON = 2000  # unused training rows at most
LEAST_VALIDATION = 1000
NOISE = 0.2
TEST, VALID = "test", "valid"
_OWN_SETTINGS = (
    "encoder_dropout",
    "head_dropout",
    "epochs",
    "learning_rate",
    "max_length",
    "model",
)
_ON_CPU = {"use_cpu": True, "dataloader_pin_memory": False}  # also where there is a GPU
_FIELDS = {
    "label_smoothing": "label_smoothing_factor",
    "weight_decay": "weight_decay",
    "neftune": "neftune_noise_alpha",
}


# ---- samples


def samples(task: str, values: Mapping[str, Any], seed: int, folder: Path) -> TextData:
    """The training samples of a seed, unused ones to validate on (as ``dev``), and the set to
    report on.

    ``train_size`` of the values is how many to train on, none: all but the fewest to validate on.
    ``evaluate_on`` is how many of the others to look at, for a quick trial.
    """
    size, most = values.get("train_size"), values.get("evaluate_on")
    data = (
        _builtin(task, size, seed, folder)
        if task.startswith(DOCSTRINGS)
        else _known(task, size, seed, folder)
    )
    return replace(data, dev=data.dev[:most], evaluations={TEST: data.evaluations[TEST][:most]})


def _known(task: str, size: int | None, seed: int, folder: Path) -> TextData:
    data = _task(task, folder)
    order = list(range(len(data.train)))
    random.Random(seed).shuffle(order)
    count = len(order) - LEAST_VALIDATION if size is None else size
    chosen, rest = order[:count], order[count : count + VALIDATE_ON]
    take = lambda indices: tuple(data.train[index] for index in sorted(indices))  # noqa: E731
    details = {**data.details, "subset": {"samples": len(chosen), "of": len(order), "seed": seed}}
    return replace(
        data, train=take(chosen), dev=take(rest), evaluations={TEST: data.dev}, details=details
    )


def _builtin(task: str, size: int | None, seed: int, folder: Path) -> TextData:
    found = _sentences(folder / builtin_data.FOLDER)
    clear = task.endswith("-clear")
    pool = found.examples(builtin_data.TRAIN, clear)
    data = TextData(
        task,
        pool,
        found.examples(builtin_data.CHOOSE, clear),
        found.labels,
        evaluations={TEST: found.examples(builtin_data.REPORT, clear)},
        details={"subset": {"samples": size, "of": len(pool), "seed": seed}},
    )
    data = data if size is None else data.subset(min(size, len(pool)), seed)
    return (
        replace(data, train=relabelled(data.train, len(found.labels), seed))
        if task.endswith("-noisy")
        else data
    )


def relabelled(examples: Sequence[Example], classes: int, seed: int) -> tuple[Example, ...]:
    """A share of the labels replaced by others, at random."""
    draw = random.Random(f"noise {seed}")
    wrong = set(draw.sample(range(len(examples)), round(NOISE * len(examples))))
    return tuple(
        replace(each, label=draw.choice([label for label in range(classes) if label != each.label]))
        if index in wrong
        else each
        for index, each in enumerate(examples)
    )


@lru_cache(maxsize=8)
def _task(name: str, folder: Path) -> TextData:
    return load_task(name, folder)


@lru_cache(maxsize=1)
def _sentences(folder: Path) -> builtin_data.Builtin:
    return builtin_data.read(folder)


# ---- a run


@dataclass(frozen=True)
class TextRun:
    """One run of a contest on texts, as the work of a runner's job; gives its record.

    Args:
        planned: what to run.
        data: the folder of the data.
        changes: of the contest's own settings, for a quick look at whether everything works.
    """

    planned: Planned
    data: Path
    changes: tuple[tuple[str, Any], ...] = ()

    def __call__(self, reporter: JobReporter) -> records.RunRecord:
        quiet_libraries()
        with for_any_shape(), tempfile.TemporaryDirectory() as scratch:
            return self._run(reporter, Path(scratch))

    @property
    def on_cpu(self) -> bool:
        return CONTESTS[self.planned.contest].device == "cpu"

    def _run(self, reporter: JobReporter, scratch: Path) -> records.RunRecord:
        values, planned = self._values(), self.planned
        settings, method = self.settings(values), planned.point.method
        data = samples(planned.task, values, planned.seed, self.data)
        contest = {
            name: getattr(planned, name) for name in ("contest", "stage", "contestant", "candidate")
        }
        data = replace(data, details={**data.details, **contest, "point": dict(values)})
        texts = Texts(data)
        plan = Plan(settings, texts, method, planned.seed, scratch)
        job = texts.build(plan, lambda _: None)
        record = replace(begin_record(plan, job), name=planned.key)
        if self.on_cpu:
            record = replace(record, environment={**record.environment, "device": "cpu"})
        trainer = job.trainer()
        report_steps(trainer, reporter.step)
        average = MovingAverage(values["ema"]) if "ema" in values else None
        if average is not None:
            trainer.add_callback(average)
        try:
            trainer.train()
        except NonFiniteLossError as error:
            return record.fail(error)
        with nullcontext() if average is None else average.in_place(trainer.model):
            predicted = {
                name: trainer.predict(rows)
                for name, rows in ((VALID, job.dev), (TEST, job.evaluations[TEST]))
            }
        return finished(record, trainer, job, data, predicted)

    def _values(self) -> dict[str, Any]:
        return {
            **CONTESTS[self.planned.contest].base,
            **self.planned.point.settings,
            **dict(self.changes),
        }

    def settings(self, values: dict[str, Any]) -> TrainSettings:
        """What the recipe is asked to do."""
        point, task = self.planned.point, self.planned.task
        fields = {field: values[name] for name, field in _FIELDS.items() if values.get(name)}
        own = {name: values[name] for name in _OWN_SETTINGS if name in values}
        named = values.get("preset")
        options = {**(preset(named, point.method) if named else {}), **point.options}
        if named:
            advised = training_preset(named, task)
            fields |= advised.get("training", {})
            own |= {"site": advised["site"]} if "site" in advised else {}
        return TrainSettings(
            task=DOCSTRINGS if task.startswith(DOCSTRINGS) else task,
            methods=(point.method,),
            options={point.method: options},
            training={
                **fields,
                **(_ON_CPU if self.on_cpu else {"tf32": torch.cuda.is_available()}),
                "save_strategy": "no",
                "eval_strategy": "no",
                "per_device_eval_batch_size": 64 if self.on_cpu else 256,
            },
            **own,
        )


# ---- scores


def finished(
    record: records.RunRecord, trainer: Any, job: ClassificationJob, data: TextData, predicted: Any
) -> records.RunRecord:
    """The record with scores of both sets; the temperature is fitted on the one that was validated
    on.
    """
    metrics: dict[str, float] = {}
    fitted = None if data.is_regression else fit_temperature(*_tensors(predicted[VALID]))
    for name, prefix in ((VALID, f"{VALID}_"), (TEST, "")):
        found = job.metrics(predicted[name].predictions, predicted[name].label_ids)
        found |= {} if fitted is None else calibration(*_tensors(predicted[name]), fitted)
        metrics |= {f"{prefix}{score}": value for score, value in found.items()}
    if fitted is not None:
        metrics["temperature"] = fitted
    details = {
        **record.task.details,
        "predictions": compact(predicted[TEST].predictions, data.is_regression),
    }
    record = replace(record, task=replace(record.task, details=details))
    return record.finish(
        metrics=metrics,
        timing={
            "seconds_per_step": trainer.timer.per_step(),
            "steps": float(trainer.state.global_step),
        },
        epoch_seconds=trainer.timer.epochs,
        passes=trainer.passes.per_step(),
        cache_bytes=memory_bytes(trainer.method),
    )


def _tensors(prediction: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.asarray(prediction.predictions)).float(), torch.from_numpy(
        prediction.label_ids
    ).long()


def compact(outputs: Any, regression: bool) -> str | list[int]:
    """What was predicted for each sample, for a bootstrap over them: a digit of its class, or
    hundredths.
    """
    if regression:
        return [round(100 * float(value)) for value in np.asarray(outputs).reshape(-1)]
    return "".join(map(str, np.asarray(outputs).argmax(-1).tolist()))
