"""One run of any kind of task: executes a plan, resumes it, and writes the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from advreg.hf.checkpoint.ranks import first_decides, is_first_process, process_count
from advreg.lab.kinds.items import Items
from advreg.lab.kinds.training import Job, Notice, OnStep, Result, device_name, train
from advreg.lab.runs.plans import RECORD_FILE, agree, begun, failures_recorded, finished, run_facts
from advreg.lab.runs.settings import RunSettings
from advreg.records import run as records


class Source(Protocol):
    """The part of a :class:`~advreg.lab.kinds.base.Workload` that a run uses."""

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def build(self, plan: Plan, notice: Notice) -> Job: ...


@dataclass(frozen=True)
class Plan:
    """One run: a method, a seed, a folder."""

    settings: RunSettings
    source: Source
    method_name: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.method_name}-seed{self.seed}"

    def facts(self) -> dict[str, Any]:
        """The facts that a resumed run must share with the original run."""
        return run_facts(self.settings, self.source.fingerprint, self.method_name, self.seed)


def run(
    plan: Plan, on_step: OnStep | None, notice: Notice, resume: bool = False
) -> records.RunRecord:
    """Execute a plan, or read its record if the run is already finished.

    The run saves ``record.json``, ``items.json.gz``, ``model/`` and checkpoints in its folder.
    """
    facts = plan.facts()
    done = first_decides(lambda: finished(plan.name, plan.folder, facts)) if resume else None
    if done is not None:
        notice(f"{plan.name}: finished before, not repeated")
        return done
    job = plan.source.build(plan, notice)
    first_decides(lambda: agree(plan.name, plan.folder, facts, resume))
    record = begun(begin_record(plan, job), plan.folder)
    with failures_recorded(record, plan.folder, job.logged):
        result = train(job, on_step, resume)
    if result.resumed_from is not None:
        notice(f"{plan.name}: resumed from step {result.resumed_from}")
    record = finish_record(record, result)
    if is_first_process():
        items_of(plan, result).save(plan.folder)
        record.save(plan.folder / RECORD_FILE)
    return record


def begin_record(plan: Plan, job: Job) -> records.RunRecord:
    """The record of a starting run."""
    settings = plan.settings
    processes = {"processes": process_count()} if process_count() > 1 else {}
    return records.RunRecord.begin(
        name=plan.name,
        method=records.MethodInfo(
            name=job.method.info.name, settings={**job.method.options(), "site": job.site}
        ),
        task=records.TaskInfo(
            name=plan.source.title,
            fingerprint=plan.source.fingerprint,
            sizes=dict(job.sizes),
            details=dict(job.details),
        ),
        model=records.ModelInfo(
            name=settings.model, parameters=sum(p.numel() for p in job.model.parameters())
        ),
        training=records.TrainingInfo(
            epochs=settings.epochs,
            batch_size=job.fields["per_device_train_batch_size"],
            learning_rate=job.fields["learning_rate"],
            precision=job.precision,
            seed=plan.seed,
            more={**_plain(job.fields), **job.more, **processes},
        ),
        device=device_name(),
    )


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in fields.items() if isinstance(value, str | int | float | bool)
    }


def finish_record(record: records.RunRecord, result: Result) -> records.RunRecord:
    """The record of the same run, finished with a result."""
    scores = result.scores
    skipped = {"skipped_updates": float(result.skipped)} if result.skipped else {}
    task = replace(record.task, details={**record.task.details, **scores.details})
    return replace(record, task=task).finish(
        metrics=scores.metrics,
        history=result.history,
        timing={
            "seconds_per_step": result.seconds_per_step,
            "steps": float(result.steps),
            **scores.timing,
            **skipped,
        },
        epoch_seconds=result.epoch_seconds,
        passes=result.passes,
        cache_bytes=result.memory_bytes,
    )


def items_of(plan: Plan, result: Result) -> Items:
    """The outcome of each evaluated sample of a run."""
    scores = result.scores
    return Items(
        kind=plan.settings.kind,
        fingerprint=plan.source.fingerprint,
        main=scores.main,
        sets={name: dict(columns) for name, columns in scores.items.items()},
    )
