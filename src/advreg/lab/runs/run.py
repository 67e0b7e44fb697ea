"""One run of any kind of task: executes a plan, resumes it, and writes the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from advreg.hf.checkpoint.ranks import first_decides, process_count
from advreg.hf.checkpoint.saving import failed_write
from advreg.lab.kinds.final_model import (
    make_private,
    model_flaw,
    require_room,
    spare_folders,
    take_from_spare,
)
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
    """One run.

    Args:
        settings: of the run.
        source: its data.
        method_name, seed: which run of the settings.
        folder: of its results.
        spare: a place for results that the folder does not take; the temporary folder comes last.
        keeps_model: is the model one of the results? If not, a run is finished without it.
    """

    settings: RunSettings
    source: Source
    method_name: str
    seed: int
    folder: Path
    spare: Path | None = None
    keeps_model: bool = True

    @property
    def name(self) -> str:
        return f"{self.method_name}-seed{self.seed}"

    @property
    def spares(self) -> list[Path]:
        """Folders for results that the run's own folder does not take."""
        return spare_folders(self.folder, self.spare) if self.keeps_model else []

    def facts(self) -> dict[str, Any]:
        """The facts that a resumed run must share with the original run."""
        return run_facts(self.settings, self.source.fingerprint, self.method_name, self.seed)


def run(
    plan: Plan, on_step: OnStep | None, notice: Notice, resume: bool = False
) -> records.RunRecord:
    """Execute a plan, or read its record if the run is already finished.

    The run saves ``record.json``, ``items.json.gz``, ``model/`` and checkpoints in its folder. The
    record says in ``unsaved`` why one of them could not be written there.
    """
    facts = plan.facts()
    done = first_decides(lambda: _done_before(plan, facts, notice)) if resume else None
    if done is not None:
        return done
    job = plan.source.build(plan, notice)
    first_decides(lambda: require_room(job, resume, notice))
    first_decides(lambda: agree(plan.name, plan.folder, facts, resume))
    record = begun(begin_record(plan, job), plan.folder)
    with failures_recorded(record, plan.folder, job.logged):
        result = train(job, on_step, resume, plan.spares)
    if result.resumed_from is not None:
        notice(f"{plan.name}: resumed from step {result.resumed_from}")
    record = finish_record(record, result)
    record, place = first_decides(lambda: _written(record, items_of(plan, result), plan))
    if record.outcome.unsaved is not None:
        notice(f"{plan.name}: {_unsaved_text(plan, record, result.saved.folder, place)}")
    return record


def _done_before(plan: Plan, facts: Mapping[str, Any], notice: Notice) -> records.RunRecord | None:
    """The record of a plan that was carried out before, and whose model is what was saved then."""
    record = finished(plan.name, plan.folder, facts)
    if record is None:
        return None
    if not plan.keeps_model:
        notice(f"{plan.name}: finished before, not repeated")
        return record
    files, unsaved = record.outcome.model_files, record.outcome.unsaved
    if unsaved is not None:
        take_from_spare(plan.folder, plan.spares, files or {})
    flaw = model_flaw(plan.folder, files)
    if flaw is not None:
        notice(f"{plan.name}: finished before, but {flaw}; the run resumes to save it again")
        return None
    if unsaved is not None:
        record = replace(record, outcome=replace(record.outcome, unsaved=None))
        record.save(plan.folder / RECORD_FILE)
        notice(f"{plan.name}: finished before; its model is in its folder now")
    elif files is None:
        notice(
            f"{plan.name}: finished before, not repeated; its record has no digests of its model, "
            "so only its presence was checked"
        )
    else:
        notice(f"{plan.name}: finished before, not repeated")
    return record


def _written(
    record: records.RunRecord, items: Items, plan: Plan
) -> tuple[records.RunRecord, Path | None]:
    """Write the results to the run's folder, else to the first spare folder that takes them;
    returns the record as written, and the folder.
    """
    for place in (plan.folder, *plan.spares):
        now = record

        def write(to: Path = place, what: records.RunRecord = now) -> None:
            if to != plan.folder:
                make_private(to)
            items.save(to)
            what.save(to / RECORD_FILE)

        failure = failed_write(write)
        if failure is None:
            return record, place
        unsaved = record.outcome.unsaved or str(failure)
        record = replace(record, outcome=replace(record.outcome, unsaved=unsaved))
    return record, None


def _unsaved_text(
    plan: Plan, record: records.RunRecord, model: Path | None, place: Path | None
) -> str:
    """Where the results of a run are that its folder did not take."""
    parts = [f"trained, but not all was saved in {plan.folder} ({record.outcome.unsaved})"]
    if model is None:
        parts.append("its model is in the last checkpoint alone")
    elif model.parent != plan.folder:
        parts.append(f"its model is in {model}")
    if place is None:
        parts.append("its record is nowhere")
    elif place != plan.folder:
        parts.append(f"its record is in {place}")
    return "; ".join([*parts, "free some space, and repeat the command with --resume"])


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
        model_files=result.saved.files,
        unsaved=result.saved.failure,
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
