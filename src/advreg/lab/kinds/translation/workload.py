"""Parallel text as a workload: the corpus of the settings, and runs on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from advreg.hf.checkpoint.ranks import process_count
from advreg.hf.view.injection import find_sites
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.base import Workload
from advreg.lab.kinds.training import Notice, device_name, usual_fields
from advreg.lab.kinds.translation.bleu import bleu
from advreg.lab.kinds.translation.corpora import load_corpus
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.job import TranslationJob
from advreg.lab.kinds.translation.judging import TestSet
from advreg.lab.kinds.translation.parallel import (
    TEST,
    TRAIN,
    TRANSLATION,
    VALID,
    Bitext,
    ParallelData,
    load_files,
    read_folder,
)
from advreg.lab.kinds.translation.prepare import (
    POSITIONS,
    Prepared,
    encode_pairs,
    keep_subwords,
    prepare_data,
    validation_text,
)
from advreg.lab.kinds.translation.subwords import SPECIAL, Subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.runs.run import Plan
from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.translation_settings import TranslationSettings

_LOGS_PER_RUN = 100
_PREPARING = ("vocabulary", "joint", "subwords", "character_coverage", "longest", "max_ratio")


@dataclass(frozen=True)
class Translations(Workload):
    """Parallel text; subwords are learnt for the first run and saved for later runs."""

    data: ParallelData
    names_data = (
        *("task", "data", "source", "target", "tokenised"),
        *(f"{split}_{side}" for split in (TRAIN, VALID, TEST) for side in ("source", "target")),
    )
    _prepared: dict[str, Prepared] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def load(cls, settings: TranslationSettings, keep: Path | None = None) -> Translations:
        return cls(_load(settings), None if keep is None else keep / "subwords")

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(text) for name, text in self.data.splits.items()}

    @property
    def summary(self) -> str:
        sizes = " and ".join(f"{count:,} {name}" for name, count in self.sizes.items())
        return f"{sizes} pairs, {' to '.join(self.data.languages)}"

    @property
    def main_metrics(self) -> tuple[str, ...]:
        return ("tokenised_bleu",) if self.data.tokenised else ("bleu",)

    @property
    def scored_on(self) -> str:
        return next(iter(self.data.tests()))

    def trained_on(self, settings: TranslationSettings, notice: Notice) -> int:
        return len(self.prepared(settings, notice).train)

    def prepared(self, settings: TranslationSettings, notice: Notice) -> Prepared:
        """The text with its subwords; the result for the last settings is cached."""
        key = repr([getattr(settings, name) for name in (*_PREPARING, "start")])
        if key not in self._prepared:
            self._prepared.clear()
            self._prepared[key] = prepare_data(settings, self.data, self.keep, notice)
        return self._prepared[key]

    def _keeping(
        self, settings: TranslationSettings, prepared: Prepared
    ) -> Callable[[], None] | None:
        """The function that saves the subwords for later runs, if there is a folder for them."""
        if self.keep is None:
            return None
        return partial(keep_subwords, settings, prepared, self.keep)

    def build(self, plan: Plan, notice: Notice) -> TranslationJob:
        settings = plan.settings
        assert isinstance(settings, TranslationSettings)
        prepared = self.prepared(settings, notice)
        model = first_model(settings, prepared.subwords, plan.seed)
        find_sites(model, settings.site)
        text = validation_text(self.data.splits[VALID], settings.validate_sentences)
        tokenised = self.data.tokenised
        job = TranslationJob(
            model=model,
            method=settings.method(plan.method_name),
            folder=plan.folder,
            subwords=prepared.subwords,
            train=prepared.train,
            valid=prepared.valid,
            valid_lines=text.source,
            score_lines=lambda lines: {"bleu": bleu(lines, text.target, tokenised)},
            max_tokens=settings.max_tokens,
            multiple=settings.round_lengths,
            decoding=Decoding(settings.validate_beam),
            judge=settings.judge,
            weights=settings.weights,
            average=settings.average,
            precision=settings.precision,
            site=settings.site,
            compile_layers=bool(settings.compile_layers),
            on_non_finite=settings.on_non_finite,
            weight_ema=settings.weight_ema,
            seed=plan.seed,
            neighbours=_neighbours(settings),
            sets=_test_sets(prepared, text),
            search=decoding_of(settings),
            tokenised=tokenised,
            keep_subwords=self._keeping(settings, prepared),
            sizes={**self.sizes, TRAIN: len(prepared.train)},
            more={k: v for k, v in settings.facts().items() if isinstance(v, str | int | float)},
        )
        job = dataclasses.replace(
            job, fields=training_fields(settings, job), details=_details(prepared, job)
        )
        # refuses bad fields before anything is written
        training_arguments(plan.folder, settings.precision, job.fields)
        for note in _notes(settings, job):
            notice(note)
        return job


WORKLOAD = Translations


def _load(settings: TranslationSettings) -> ParallelData:
    if settings.task != TRANSLATION:
        data = load_corpus(settings.task, None if settings.data is None else Path(settings.data))
        tokenised = data.tokenised if settings.tokenised is None else settings.tokenised
        return dataclasses.replace(data, tokenised=tokenised)
    languages = settings.source or "source", settings.target or "target"
    files = settings.files()
    if files:
        return load_files(files, languages, bool(settings.tokenised))
    assert settings.data is not None  # the settings were checked
    splits = read_folder(Path(settings.data), *languages)
    return ParallelData(Path(settings.data).name, languages, splits, bool(settings.tokenised))


# ---- building a run


def first_model(settings: TranslationSettings, subwords: Subwords, seed: int) -> Any:
    """A model with random weights, or the trained one to start from."""
    if settings.start is not None:
        return Translator.load(settings.start, "cpu", settings.model_dropout).model.train()
    return build_translator(
        settings.model,
        len(subwords.source),
        None if subwords.joint else len(subwords.target),
        settings.model_dropout,
        POSITIONS,
        seed,
        SPECIAL,
    )


def decoding_of(settings: TranslationSettings) -> Decoding:
    """The search for the test sets."""
    search = settings.search()
    return Decoding(search.beam, search.length_penalty)


def _test_sets(prepared: Prepared, validated: Bitext) -> dict[str, TestSet]:
    """The sets for the final scores: the sentences of validations, and every test set; the whole
    validation set if there is no test set.
    """
    found = {VALID: TestSet(validated, prepared.valid)}
    for name, text in prepared.data.tests().items():
        pairs = prepared.valid if name == VALID else encode_pairs(text, prepared.subwords)
        found[name] = TestSet(text, pairs)
    return found


def _neighbours(settings: TranslationSettings) -> Path | None:
    if settings.neighbour_embeddings is None:
        return None
    path = Path(settings.neighbour_embeddings)
    if not path.exists():
        raise SettingsError(
            "neighbour_embeddings must be a model folder or a safetensors file, got "
            f"'{path}', which does not exist"
        )
    return path


def training_fields(settings: TranslationSettings, job: TranslationJob) -> dict[str, Any]:
    """TrainingArguments of a job; the user's own win."""
    batches = job.batches()
    tokens = batches.target_tokens() * process_count()  # of a batch in every process
    accumulated = min(max(1, round(settings.update_tokens / tokens)), len(batches))
    updates = -(-len(batches) // accumulated)  # of an epoch
    every = settings.validate_every * updates
    warmup = min(4000, updates * settings.epochs // 5)
    samples = round(len(job.train) / len(batches) / process_count())
    fields = {
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": max(1, samples),  # for the record: the trainer ignores it
        "gradient_accumulation_steps": accumulated,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": warmup if settings.warmup_steps is None else settings.warmup_steps,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.clip_norm,
        "label_smoothing_factor": settings.label_smoothing,
        "logging_steps": max(1, updates * settings.epochs // _LOGS_PER_RUN),
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
    }
    loading = _loading(accumulated, settings.training)
    return {**usual_fields(job.seed), **fields, **loading, **settings.training}


def _loading(accumulated: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """On a GPU, a worker makes the batches of the next update during this one. On a CPU it would
    compete with the training.
    """
    workers = given.get("dataloader_num_workers", 0 if device_name() == "cpu" else 1)
    if not workers:
        return {}
    return {
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": accumulated + 1,  # an update takes all of its batches at once
    }


# ---- what is said of it


def _details(prepared: Prepared, job: TranslationJob) -> dict[str, Any]:
    """The record's description of the task."""
    data, kept, batches = prepared.data, prepared.kept, job.batches()
    return {
        **data.details,
        "languages": list(data.languages),
        "tokenised": data.tokenised,
        "dropped_empty": {name: text.dropped for name, text in data.splits.items()},
        "filtered": {"too_long": kept.too_long, "too_unlike": kept.too_unlike},
        "vocabulary": {"source": len(job.subwords.source), "target": len(job.subwords.target)},
        "joint": job.subwords.joint,
        "tokens": prepared.train.tokens,
        "batches": len(batches),
        "padding": batches.padding_share(),
        "target_tokens_per_batch": batches.target_tokens(),
        "decoding": dataclasses.asdict(job.search),
    }


def _notes(settings: TranslationSettings, job: TranslationJob) -> list[str]:
    """Notices for the user about the batches and the average."""
    accumulated, processes = job.fields["gradient_accumulation_steps"], process_count()
    each = f" in each of {processes} processes" if processes > 1 else ""
    details, batches = job.details, job.details["batches"]
    tokens = accumulated * processes * details["target_tokens_per_batch"]
    notes = [
        f"{len(job.train):,} pairs in {batches} batches an epoch{each}, "
        f"{details['padding']['both']:.1%} of the positions padding; batches an update{each}: "
        f"{accumulated}, {tokens:,.0f} target tokens; "
        f"updates an epoch: {-(-batches // accumulated)}"
    ]
    validations = -(-settings.epochs // settings.validate_every)
    if settings.weights == "average" and validations < settings.average:
        notes.append(
            f"average must be {validations} or less with so few validations, got "
            f"{settings.average}: all are averaged"
        )
    return notes
