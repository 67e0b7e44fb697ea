"""Text classification and regression: methods × seeds on one data set, each run with its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.hf.checkpoint.ranks import first_decides, is_first_process, process_count
from advreg.hf.data import Limits
from advreg.hf.view.injection import find_sites
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.encode import encode, longest_input, padding_collator
from advreg.lab.kinds.fine_tuning import Job, Metrics, Result, device_name, fine_tune, usual_fields
from advreg.lab.kinds.models import load_classifier, load_tokenizer
from advreg.lab.runs.plans import RECORD_FILE, agree, begun, failures_recorded, finished, run_facts
from advreg.lab.runs.settings import DOCSTRINGS, TrainSettings
from advreg.lab.tasks.docstrings import load_docstrings
from advreg.lab.tasks.metrics import classification_scores, regression_scores, scorer
from advreg.lab.tasks.tables import load_tables
from advreg.lab.tasks.textdata import TextData
from advreg.lab.tasks.understanding import TASKS, load_task
from advreg.methods import Method
from advreg.records import run as records

_LOGS_PER_RUN, _EVALUATIONS_PER_RUN = 50, 4

Notice = Callable[[str], None]
OnStep = Callable[["Plan", int, int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Plan:
    """One run: a method, a seed, a folder."""

    settings: TrainSettings
    data: TextData
    method_name: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.method_name}-seed{self.seed}"

    def facts(self) -> dict[str, Any]:
        """What a resumed run must agree on with the run it goes on with."""
        return run_facts(self.settings, self.data.fingerprint(), self.method_name, self.seed)


def load_data(settings: TrainSettings) -> TextData:
    """The samples the settings name."""
    if settings.task == DOCSTRINGS:
        return load_docstrings()
    if settings.task in TASKS:
        return load_task(settings.task, None if settings.data is None else Path(settings.data))
    assert settings.train is not None  # the settings were checked
    return load_tables(
        Path(settings.train),
        Path(settings.dev) if settings.dev else None,
        text=settings.text_column,
        pair=settings.pair_column,
        label=settings.label_column,
    )


def plan_runs(settings: TrainSettings, data: TextData, folder: Path) -> list[Plan]:
    """Every seed with every method; seeds outermost, so that methods take turns and share the
    machine's moods.

    A method that these data or this machine do not allow is refused before the first of them is
    trained.
    """
    settings.require(len(data.train))
    return [
        Plan(settings, data, method, seed, folder / f"{method}-seed{seed}")
        for seed in settings.seeds
        for method in settings.methods
    ]


def run(plan: Plan, on_step: OnStep, notice: Notice, resume: bool) -> records.RunRecord:
    """Carry a plan out, or read its record if it was finished before."""
    facts = plan.facts()
    if (
        resume
        and (done := first_decides(lambda: finished(plan.name, plan.folder, facts))) is not None
    ):
        notice(f"{plan.name}: finished before, not repeated")
        return done
    method = plan.settings.method(plan.method_name)
    job = prepare(plan, method, notice)
    first_decides(lambda: agree(plan.name, plan.folder, facts, resume))
    record = begun(begin_record(plan, method, job), plan.folder)
    with failures_recorded(record, plan.folder, job.logged):
        result = fine_tune(job, lambda *step: on_step(plan, *step), resume)
    if result.resumed_from is not None:
        notice(f"{plan.name}: resumed from step {result.resumed_from}")
    record = finish_record(record, result)
    if is_first_process():
        record.save(plan.folder / RECORD_FILE)
    return record


def prepare(plan: Plan, method: Method, notice: Notice) -> Job:
    """Tokenizer, model and samples of a plan; nothing is written yet, so a mistake leaves nothing
    behind.
    """
    settings, data = plan.settings, plan.data
    fields = training_fields(plan, len(data.train))
    training_arguments(
        plan.folder, settings.precision, fields
    )  # refuses bad ones before a model is loaded
    texts = [
        text for example in data.train for text in (example.text, example.pair) if text is not None
    ]
    trusted = settings.trust_remote_code
    tokenizer = load_tokenizer(settings.model, texts, settings.text_length or 64, trusted)
    dropouts = settings.encoder_dropout, settings.head_dropout
    model = load_classifier(settings.model, tokenizer, data.labels, plan.seed, *dropouts, trusted)
    find_sites(model, settings.site)
    longest = longest_input(tokenizer, Limits.of(model).positions, settings.text_length)
    for note in data.notes:
        notice(note)
    splits = {}
    for name, examples in (("train", data.train), ("dev", data.dev), *data.evaluations.items()):
        pairs = [example.pair or "" for example in examples] if data.has_pairs else None
        encoded = encode(
            tokenizer, [e.text for e in examples], pairs, [e.label for e in examples], longest
        )
        if encoded.cut:
            notice(
                f"{encoded.cut} of {len(examples)} {name} texts are longer than {longest} tokens "
                "and were cut"
            )
        splits[name] = encoded.samples
    return Job(
        model=model,
        tokenizer=tokenizer,
        collator=padding_collator(tokenizer, settings.round_lengths),
        train=splits.pop("train"),
        dev=splits.pop("dev"),
        evaluations=splits,
        metrics=scores_of(data),
        method=method,
        folder=plan.folder,
        precision=settings.precision,
        site=settings.site,
        compile_layers=bool(settings.compile_layers),
        on_non_finite=settings.on_non_finite,
        fields=fields,
    )


def scores_of(data: TextData) -> Metrics:
    """The scores the data name, or the usual ones of their kind."""
    if data.metrics:
        return scorer(data.metrics, data.is_regression)
    return regression_scores if data.is_regression else classification_scores


def training_fields(plan: Plan, samples: int) -> dict[str, Any]:
    """TrainingArguments of a plan; what the user set by name wins."""
    settings = plan.settings
    steps = -(-samples // (settings.batch_size * process_count())) * settings.epochs
    fields = {
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": max(settings.batch_size, 64),
        "learning_rate": settings.peak_learning_rate,
        # below 1 a share of the steps, which accumulation and max_steps change
        "warmup_steps": settings.warmup,
        "lr_scheduler_type": "linear",
        "logging_steps": max(1, steps // _LOGS_PER_RUN),
        "eval_strategy": "steps",
        "eval_steps": max(1, steps // _EVALUATIONS_PER_RUN),
        "save_strategy": "epoch",
    }
    return {**usual_fields(plan.seed), **fields, **settings.training}


def begin_record(plan: Plan, method: Method, job: Job) -> records.RunRecord:
    settings, data = plan.settings, plan.data
    sets = {"train": data.train, "dev": data.dev, **data.evaluations}
    return records.RunRecord.begin(
        name=plan.name,
        method=records.MethodInfo(
            name=method.info.name, settings={**method.options(), "site": settings.site}
        ),
        task=records.TaskInfo(
            name=data.name,
            fingerprint=data.fingerprint(),
            sizes={name: len(examples) for name, examples in sets.items()},
            details={
                "labels": list(data.labels) if data.labels is not None else None,
                **data.details,
            },
        ),
        model=records.ModelInfo(
            name=settings.model, parameters=sum(p.numel() for p in job.model.parameters())
        ),
        training=records.TrainingInfo(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.peak_learning_rate,
            precision=settings.precision,
            seed=plan.seed,
            more={
                **{
                    name: value
                    for name, value in job.fields.items()
                    if isinstance(value, str | int | float | bool)
                },
                "encoder_dropout": settings.encoder_dropout,
                "head_dropout": settings.head_dropout,
                **({"processes": process_count()} if process_count() > 1 else {}),
            },
        ),
        device=device_name(),
    )


def finish_record(record: records.RunRecord, result: Result) -> records.RunRecord:
    return record.finish(
        metrics=result.metrics,
        history=result.history,
        timing={
            "seconds_per_step": result.seconds_per_step,
            "steps": float(result.steps),
            **({"skipped_updates": float(result.skipped)} if result.skipped else {}),
        },
        epoch_seconds=result.epoch_seconds,
        passes=result.passes,
        cache_bytes=result.memory_bytes,
    )
