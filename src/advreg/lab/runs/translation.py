"""Machine translation from raw text to a BLEU score: methods × seeds on one corpus, each run with
its record.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from advreg.core.progress import Progress, counting
from advreg.hf.checkpoint.ranks import first_decides, is_first_process, process_count
from advreg.hf.view.injection import find_sites
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.batching import Pairs
from advreg.lab.kinds.decoding import Decoding
from advreg.lab.kinds.fine_tuning import Result, device_name, usual_fields
from advreg.lab.kinds.subwords import SPECIAL, Subwords, learn_subwords, translator_folder
from advreg.lab.kinds.translator import (
    TranslationJob,
    Translator,
    cut,
    export,
    pair_loss,
    train_translator,
)
from advreg.lab.runs.plans import RECORD_FILE, agree, begun, failures_recorded, finished, run_facts
from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.tasks.bleu import Scores, bleu, score
from advreg.lab.tasks.corpora import load_corpus
from advreg.lab.tasks.parallel import (
    TRAIN,
    TRANSLATION,
    VALID,
    Bitext,
    Kept,
    ParallelData,
    filter_pairs,
    load_files,
    read_folder,
)
from advreg.records import run as records

Notice = Callable[[str], None]
OnStep = Callable[[str, int, int, Mapping[str, float]], None]

_POSITIONS = 1024
_LOGS_PER_RUN = 100
_SUBWORD_FACTS_FILE = "learnt_from.json"
_SUBWORD_FACTS = ("vocabulary", "joint", "subwords", "character_coverage")


# ---- data


def load_parallel(settings: TranslationSettings) -> ParallelData:
    """The text the settings name."""
    if settings.task != TRANSLATION:
        data = load_corpus(settings.task, None if settings.data is None else Path(settings.data))
        return (
            data
            if settings.tokenised is None
            else dataclasses.replace(data, tokenised=settings.tokenised)
        )
    languages = settings.source or "source", settings.target or "target"
    files = settings.files()
    if files:
        return load_files(files, languages, bool(settings.tokenised))
    assert settings.data is not None  # the settings were checked
    splits = read_folder(Path(settings.data), *languages)
    return ParallelData(Path(settings.data).name, languages, splits, bool(settings.tokenised))


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training: subwords, encoded pairs, and what was filtered out.

    Args:
        data: the text.
        subwords: learnt from its training split.
        train, valid: encoded pairs.
        kept: what the filter left of the training pairs.
    """

    data: ParallelData
    subwords: Subwords
    train: Pairs
    valid: Pairs
    kept: Kept

    @cached_property
    def fingerprint(self) -> str:
        return self.data.fingerprint()


def prepare_data(
    settings: TranslationSettings, data: ParallelData, folder: Path | None, notice: Notice
) -> Prepared:
    """Learn the subwords, or load those that ``folder`` holds if they are the same; encode and
    filter.
    """
    for note in data.notes:
        notice(note)
    for name, text in data.splits.items():
        if text.dropped:
            notice(
                f"{text.dropped:,} of {len(text) + text.dropped:,} {name} pairs had an empty side "
                "and were dropped"
            )
    subwords = first_decides(lambda: _subwords(settings, data, folder, notice))
    train, kept = training_pairs(data.splits[TRAIN], subwords, settings.longest, settings.max_ratio)
    filtered = kept.note(settings.longest, settings.max_ratio)
    if filtered is not None:
        notice(filtered)
    return Prepared(data, subwords, train, encode_pairs(data.splits[VALID], subwords), kept)


def training_pairs(
    text: Bitext, subwords: Subwords, longest: int, max_ratio: float
) -> tuple[Pairs, Kept]:
    """What there is to train on: pairs as ids, those left out that are too long or too unlike in
    length.
    """
    source, target = subwords.source.encode(text.source), subwords.target.encode(text.target)
    lengths = [[len(row) - 1 for row in rows] for rows in (source, target)]
    kept = filter_pairs(lengths[0], lengths[1], longest, max_ratio)
    return Pairs(
        [source[index] for index in kept.indices], [target[index] for index in kept.indices]
    ), kept


def encode_pairs(text: Bitext, subwords: Subwords) -> Pairs:
    """Both sides as ids; what is longer than the model's positions is cut."""
    sides = subwords.source.encode(text.source), subwords.target.encode(text.target)
    return Pairs(*(cut(rows, _POSITIONS) for rows in sides))


def _subwords(
    settings: TranslationSettings, data: ParallelData, folder: Path | None, notice: Notice
) -> Subwords:
    """Those of the model to go on from, those that were learnt before, or new ones; learning again
    gives the same.
    """
    if settings.start is not None:
        return Subwords.load(translator_folder(settings.start))
    if (
        folder is not None
        and _kept_facts(folder) == json.dumps(_subword_facts(settings, data)).encode()
    ):
        return Subwords.load(folder)
    train = data.splits[TRAIN]
    each = "" if settings.joint else " for each language"
    notice(
        f"{data.name}: learning {settings.vocabulary:,} subwords{each} from {len(train):,} pairs "
        "of lines"
    )
    return learn_subwords(
        train.source,
        train.target,
        settings.vocabulary,
        settings.joint,
        settings.subwords,
        settings.character_coverage,
    )


def _subword_facts(settings: TranslationSettings, data: ParallelData) -> dict[str, Any]:
    """What decides the subwords."""
    if settings.start is not None:
        return {"model": settings.model}
    text = ParallelData("", data.languages, {TRAIN: data.splits[TRAIN]}).fingerprint()
    return {**{name: getattr(settings, name) for name in _SUBWORD_FACTS}, "text": text}


def _kept_facts(folder: Path) -> bytes | None:
    """What the subwords in a folder were learnt with, as it is written; they are whole once it
    is.
    """
    path = folder / _SUBWORD_FACTS_FILE
    return path.read_bytes() if path.is_file() else None


def _keep_subwords(settings: TranslationSettings, prepared: Prepared, folder: Path) -> None:
    """Save the subwords of the runs, once."""
    if _kept_facts(folder) is None:
        prepared.subwords.save(folder)
        records.write_text(
            folder / _SUBWORD_FACTS_FILE, json.dumps(_subword_facts(settings, prepared.data))
        )


# ---- runs


@dataclass(frozen=True)
class Plan:
    """One run: a method, a seed, a folder; and where subwords are kept for the runs beside it, if
    they are.
    """

    settings: TranslationSettings
    prepared: Prepared
    method_name: str
    seed: int
    folder: Path
    subwords_folder: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.method_name}-seed{self.seed}"

    def facts(self) -> dict[str, Any]:
        """What a resumed run must agree on with the run it goes on with."""
        return run_facts(self.settings, self.prepared.fingerprint, self.method_name, self.seed)


def run_translation(
    settings: TranslationSettings,
    folder: Path,
    on_step: OnStep,
    notice: Notice,
    resume: bool = False,
) -> list[records.RunRecord]:
    """Every seed with every method; each leaves ``record.json``, ``model/`` and its translations in
    its folder.
    """
    subwords = folder / "subwords"
    prepared = prepare_data(settings, load_parallel(settings), subwords, notice)
    settings.require(len(prepared.train))
    plans = [
        Plan(settings, prepared, method, seed, folder / f"{method}-seed{seed}", subwords)
        for seed in settings.seeds
        for method in settings.methods
    ]
    return [run(plan, on_step, notice, resume) for plan in plans]


def run(plan: Plan, on_step: OnStep, notice: Notice, resume: bool) -> records.RunRecord:
    """Carry a plan out, or read its record if it was finished before."""
    facts = plan.facts()
    if (
        resume
        and (done := first_decides(lambda: finished(plan.name, plan.folder, facts))) is not None
    ):
        notice(f"{plan.name}: finished before, not repeated")
        return done
    job = make_job(plan)
    first_decides(lambda: agree(plan.name, plan.folder, facts, resume))
    if plan.subwords_folder is not None and is_first_process():
        _keep_subwords(plan.settings, plan.prepared, plan.subwords_folder)
    record = begun(begin_record(plan, job), plan.folder)
    notice(_batches_note(record))
    if (fewer := _fewer_to_average(plan.settings)) is not None:
        notice(fewer)
    with failures_recorded(record, plan.folder, job.logged):
        result = train_translator(job, lambda *step: on_step(plan.name, *step), resume)
        steps = result.steps
        told = lambda _, done, total: on_step(plan.name, steps, steps, {"translated": done / total})  # noqa: E731
        scores = first_decides(lambda: judge_model(plan, job, told))
    if result.resumed_from is not None:
        notice(f"{plan.name}: resumed from step {result.resumed_from}")
    record = finish_record(record, job, result, scores)
    if is_first_process():
        record.save(plan.folder / RECORD_FILE)
    return record


def make_job(plan: Plan) -> TranslationJob:
    """Model, batches and settings of a plan; nothing is written yet."""
    settings, prepared = plan.settings, plan.prepared
    subwords, model = prepared.subwords, first_model(settings, prepared.subwords, plan.seed)
    find_sites(model, settings.site)
    validated = validation_text(prepared.data.splits[VALID], settings.validate_sentences)
    tokenised = prepared.data.tokenised
    embeddings = (
        None if settings.neighbour_embeddings is None else Path(settings.neighbour_embeddings)
    )
    if embeddings is not None and not embeddings.exists():
        raise SettingsError(
            "neighbour_embeddings must be a model folder or a safetensors file, got "
            f"'{embeddings}', which is not there"
        )
    job = TranslationJob(
        model=model,
        subwords=subwords,
        train=prepared.train,
        valid=prepared.valid,
        valid_lines=validated.source,
        score=lambda translations: {"bleu": bleu(translations, validated.target, tokenised)},
        method=settings.method(plan.method_name),
        folder=plan.folder,
        max_tokens=settings.max_tokens,
        multiple=settings.round_lengths,
        decoding=Decoding(settings.validate_beam),
        judge=settings.judge,
        keep=settings.average if settings.weights == "average" else 1,
        precision=settings.precision,
        site=settings.site,
        compile_layers=bool(settings.compile_layers),
        short_attention=bool(settings.short_attention),
        on_non_finite=settings.on_non_finite,
        seed=plan.seed,
        neighbours=embeddings,
    )
    fields = training_fields(settings, job, plan.seed)
    training_arguments(
        plan.folder, settings.precision, fields
    )  # refuses bad ones before anything is written
    return dataclasses.replace(job, fields=fields)


def first_model(settings: TranslationSettings, subwords: Subwords, seed: int) -> Any:
    """A model with random weights, or the trained one to go on from."""
    if settings.start is not None:
        return Translator.load(settings.start, "cpu", settings.model_dropout).model.train()
    return build_translator(
        settings.model,
        len(subwords.source),
        None if subwords.joint else len(subwords.target),
        settings.model_dropout,
        _POSITIONS,
        seed,
        SPECIAL,
    )


def validation_text(text: Bitext, count: int) -> Bitext:
    """Pairs to translate at a validation, the same ones in every run; all of them if ``count`` is
    0.
    """
    chosen = list(range(len(text)))
    if 0 < count < len(chosen):
        chosen = sorted(random.Random(0).sample(chosen, count))
    return text.take(chosen)


def training_fields(
    settings: TranslationSettings, job: TranslationJob, seed: int
) -> dict[str, Any]:
    """TrainingArguments of a job; what the user set by name wins."""
    batches = job.batches()
    tokens = batches.target_tokens() * process_count()  # of a batch in every process
    accumulated = min(max(1, round(settings.update_tokens / tokens)), len(batches))
    updates = -(-len(batches) // accumulated)  # of an epoch
    every = settings.validate_every * updates
    fields = {
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": max(
            1, round(len(job.train) / len(batches) / process_count())
        ),  # not used
        "gradient_accumulation_steps": accumulated,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": min(4000, updates * settings.epochs // 5)
        if settings.warmup_steps is None
        else settings.warmup_steps,
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
    return {
        **usual_fields(seed),
        **fields,
        **_loading(accumulated, settings.training),
        **settings.training,
    }


def _loading(accumulated: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """With a GPU batches are made while those of the last update are trained on; a CPU has better
    things to do.
    """
    workers = given.get("dataloader_num_workers", 0 if device_name() == "cpu" else 1)
    if not workers:
        return {}
    return {
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": accumulated + 1,  # an update takes all of its batches at once
    }


# ---- scores


def decoding_of(settings: TranslationSettings) -> Decoding:
    """How the test sets are decoded."""
    search = settings.search()
    return Decoding(search.beam, search.length_penalty)


@dataclass(frozen=True)
class Judged:
    """What the chosen weights are worth: scores by set, losses by set, and which validations they
    come from.
    """

    scores: Mapping[str, Scores]
    losses: Mapping[str, float]
    steps: list[int]


def judge_model(plan: Plan, job: TranslationJob, progress: Progress | None = None) -> Judged:
    """Export the chosen weights, and score the exported model on every test set; its translations
    are written too.

    Beside test sets, of the validation set only what is translated at validations is translated.
    """
    settings, data = plan.settings, plan.prepared.data
    snapshots = job.snapshots()
    steps = {
        "best": lambda: [snapshots.best()],
        "last": lambda: snapshots.last(1),
        "average": lambda: snapshots.last(settings.average),
    }[settings.weights]()
    export(job, steps, decoding_of(settings), plan.folder / "model")
    translator = Translator.load(plan.folder / "model")
    precision = "bf16" if settings.precision == "bf16" else "fp32"
    scores, losses = {}, {}
    sets = {VALID: validation_text(data.splits[VALID], settings.validate_sentences), **data.tests()}
    advance = counting(progress, "translated", sum(map(len, sets.values())))
    for name, text in sets.items():
        translations = translator.translate(text.source, precision=precision, advance=advance)
        if len(text) == len(data.splits[name]):  # line by line beside the source
            records.write_text(
                plan.folder / f"{name}.translations.txt",
                "".join(f"{line}\n" for line in translations),
            )
        scores[name] = score(translations, text.target, data.tokenised)
        pairs = plan.prepared.valid if name == VALID else encode_pairs(text, plan.prepared.subwords)
        losses[name] = pair_loss(translator.model, pairs, job.collator(), settings.max_tokens)
    return Judged(scores, losses, steps)


# ---- records


def begin_record(plan: Plan, job: TranslationJob) -> records.RunRecord:
    settings, prepared = plan.settings, plan.prepared
    batches = job.batches()
    details = {
        **prepared.data.details,
        "languages": list(prepared.data.languages),
        "tokenised": prepared.data.tokenised,
        "dropped_empty": {name: text.dropped for name, text in prepared.data.splits.items()},
        "filtered": {"too_long": prepared.kept.too_long, "too_unlike": prepared.kept.too_unlike},
        "vocabulary": {
            "source": len(prepared.subwords.source),
            "target": len(prepared.subwords.target),
        },
        "joint": prepared.subwords.joint,
        "tokens": prepared.train.tokens,
        "batches": len(batches),
        "padding": batches.padding_share(),
        "target_tokens_per_batch": batches.target_tokens(),
        "decoding": dataclasses.asdict(decoding_of(settings)),
    }
    sizes = {name: len(text) for name, text in prepared.data.splits.items()} | {
        TRAIN: len(prepared.train)
    }
    return records.RunRecord.begin(
        name=plan.name,
        method=records.MethodInfo(
            name=job.method.info.name, settings={**job.method.options(), "site": settings.site}
        ),
        task=records.TaskInfo(
            name=prepared.data.name, fingerprint=prepared.fingerprint, sizes=sizes, details=details
        ),
        model=records.ModelInfo(
            name=settings.model, parameters=sum(p.numel() for p in job.model.parameters())
        ),
        training=records.TrainingInfo(
            epochs=settings.epochs,
            batch_size=job.fields["per_device_train_batch_size"],
            learning_rate=settings.learning_rate,
            precision=settings.precision,
            seed=plan.seed,
            more={
                **{
                    name: value
                    for name, value in job.fields.items()
                    if isinstance(value, str | int | float | bool)
                },
                **{
                    name: value
                    for name, value in settings.facts().items()
                    if isinstance(value, str | int | float)
                },
                **({"processes": process_count()} if process_count() > 1 else {}),
            },
        ),
        device=device_name(),
    )


def _fewer_to_average(settings: TranslationSettings) -> str | None:
    """What to say where there are fewer validations than are to be averaged."""
    validations = -(-settings.epochs // settings.validate_every)
    if settings.weights != "average" or validations >= settings.average:
        return None
    return f"average must be {validations} or less with so few validations, got {settings.average}: all are averaged"


def _batches_note(record: records.RunRecord) -> str:
    details = record.task.details
    accumulated, processes = record.training.more["gradient_accumulation_steps"], process_count()
    each = f" in each of {processes} processes" if processes > 1 else ""
    return (
        f"{record.task.sizes[TRAIN]:,} pairs in {details['batches']} batches an epoch{each}, "
        f"{details['padding']['both']:.1%} of the positions padding; batches an update{each}: "
        f"{accumulated}, "
        f"{accumulated * processes * details['target_tokens_per_batch']:,.0f} target tokens; "
        f"updates an epoch: {-(-details['batches'] // accumulated)}"
    )


def finish_record(
    record: records.RunRecord, job: TranslationJob, result: Result, judged: Judged
) -> records.RunRecord:
    """Scores of the first test set bear its score's name alone; those of other sets bear the
    set's.
    """
    main = next((name for name in judged.scores if name != VALID), VALID)
    metrics: dict[str, float] = {}
    for name, scores in judged.scores.items():
        prefix = "" if name == main else f"{name}_"
        metrics |= {f"{prefix}{score}": value for score, value in scores.metrics().items()}
        metrics[f"{prefix}loss"] = judged.losses[name]
    batches = job.fields["gradient_accumulation_steps"] * process_count()
    tokens = record.task.details["target_tokens_per_batch"] * batches
    details = {
        **record.task.details,
        "scored": main,
        "signatures": judged.scores[main].signatures,
        "weights_of_steps": judged.steps,
    }
    record = dataclasses.replace(record, task=dataclasses.replace(record.task, details=details))
    seconds = result.seconds_per_step
    return record.finish(
        metrics=metrics,
        history=result.history,
        timing={
            "seconds_per_step": seconds,
            "steps": float(result.steps),
            "target_tokens_per_second": tokens / seconds if seconds else None,
            **({"skipped_updates": float(result.skipped)} if result.skipped else {}),
        },
        epoch_seconds=result.epoch_seconds,
        passes=result.passes,
        cache_bytes=result.memory_bytes,
    )
