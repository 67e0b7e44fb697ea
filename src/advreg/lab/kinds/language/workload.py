"""Samples of language modelling as a workload: the data that settings name, and runs on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

from advreg.hf.checkpoint.ranks import process_count
from advreg.hf.data import Limits
from advreg.hf.view.injection import find_sites
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.base import Workload
from advreg.lab.kinds.language.description import LANGUAGE
from advreg.lab.kinds.language.encoding import Encoded, Encoder, collator, prepared_tokenizer
from advreg.lab.kinds.language.forms import COLUMNS
from advreg.lab.kinds.language.job import EvaluationSet, LanguageJob
from advreg.lab.kinds.language.metrics import bleu_metric
from advreg.lab.kinds.language.samples import (
    DEV,
    TEST,
    TRAIN,
    LanguageData,
    load_files,
    load_task,
)
from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.models import DROPOUTS, ModelError, load_any, load_tokenizer
from advreg.lab.kinds.training import Notice, usual_fields
from advreg.lab.runs.run import Plan

_LOGS_PER_RUN = 50
_FEW = 2  # samples, enough to build a run on


@dataclass(frozen=True)
class LanguageTexts(Workload):
    """Text, prompts with answers, or chats."""

    data: LanguageData
    names_data = (
        *("task", "data", "train", "dev", "test"),
        *(f"{name}_column" for name in COLUMNS),
    )

    @classmethod
    def load(cls, settings: LanguageSettings, keep: Path | None = None) -> LanguageTexts:
        return cls(_load(settings), keep)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(part) for name, part in self.data.splits.items()}

    @property
    def summary(self) -> str:
        sizes = ", ".join(f"{count:,} {name}" for name, count in self.sizes.items())
        return f"{sizes} samples of the form {self.data.kind}"

    @property
    def main_metrics(self) -> tuple[str, ...]:
        return ("perplexity",)

    @property
    def scored_on(self) -> str:
        return self.data.scored_on

    def for_rehearsal(self) -> LanguageTexts:
        few = {name: part[:_FEW] for name, part in self.data.splits.items()}
        return replace(self, data=replace(self.data, splits=few))

    def build(self, plan: Plan, notice: Notice) -> LanguageJob:
        settings = plan.settings
        assert isinstance(settings, LanguageSettings)
        tokenizer = load_tokenizer(settings.model, [], 0, settings.trust_remote_code)
        encoder = Encoder(prepared_tokenizer(tokenizer))
        model = load_model(settings, plan.seed)
        find_sites(model, settings.site)
        positions = _positions(model, settings.round_lengths)
        train = self._train(settings, encoder, positions, notice)
        sets = self._sets(settings, encoder, positions, notice)
        fields = training_fields(settings, plan.seed, len(train.rows))
        # refuses bad fields before anything is written
        training_arguments(plan.folder, settings.precision, fields)
        return LanguageJob(
            model=model,
            method=settings.method(plan.method_name),
            folder=plan.folder,
            train=train.rows,
            sets=sets,
            scored_on=self.scored_on,
            tokenizer=tokenizer,
            collator=collator(tokenizer, settings.round_lengths),
            generates=self._generates(settings),
            pattern=settings.pattern,
            answer_length=settings.answer_length,
            positions=positions,
            precision=settings.precision,
            site=settings.site,
            compile_layers=bool(settings.compile_layers),
            on_non_finite=settings.on_non_finite,
            weight_ema=settings.weight_ema,
            fields=fields,
            sizes={TRAIN: self.sizes[TRAIN], **{n: len(each.samples) for n, each in sets.items()}},
            details=self._details(train, sets),
            more={k: v for k, v in settings.facts().items() if isinstance(v, str | int | float)},
        )

    def _details(self, train: Encoded, sets: Mapping[str, EvaluationSet]) -> dict[str, Any]:
        """What the record says of the task."""
        return {
            **self.data.details,
            "sample_form": self.data.kind,
            "scored": self.scored_on,
            "cut": {TRAIN: train.cut, **{n: each.encoded.cut for n, each in sets.items()}},
            "answer_tokens": train.learnt,
        }

    def _train(
        self, settings: LanguageSettings, encoder: Encoder, positions: int | None, notice: Notice
    ) -> Encoded:
        """The training samples, cut to the length that is allowed."""
        longest = min(settings.max_length, positions or settings.max_length)
        train = encoder.encode(self.data.splits[TRAIN], longest, cuts=True)
        if train.cut:
            notice(
                f"{train.cut} of {len(train.rows):,} training samples are longer than {longest} "
                "tokens and were cut"
            )
        notice(f"{train.learnt:,} tokens are learnt in an epoch, in {len(train.rows):,} rows")
        return train

    def _sets(
        self, settings: LanguageSettings, encoder: Encoder, positions: int | None, notice: Notice
    ) -> dict[str, EvaluationSet]:
        """What is scored: whole samples, cut only where the model has no positions for them."""
        found = {}
        for name in (DEV, TEST):
            samples = self.data.splits.get(name, ())[: settings.evaluate_on or None]
            if samples:
                encoded = encoder.encode(samples, positions, cuts=True)
                found[name] = EvaluationSet(samples, encoded)
                if encoded.cut:
                    notice(
                        f"{encoded.cut} rows of {name} are longer than the model's {positions} "
                        "positions and were cut: their loss is of the beginning"
                    )
        return found

    def _generates(self, settings: LanguageSettings) -> bool:
        """Whether answers are generated: if asked for, or if there is something to compare."""
        if self.data.kind == "text" or settings.generate is False:
            return False
        has_references = any(
            sample.references
            for name, part in self.data.splits.items()
            if name != TRAIN
            for sample in part
        )
        wanted = bool(settings.generate or has_references or settings.pattern)
        if wanted:
            bleu_metric()  # refuses a missing package before the training
        return wanted


WORKLOAD = LanguageTexts


def _load(settings: LanguageSettings) -> LanguageData:
    if settings.task != LANGUAGE:
        return load_task(settings.task, None if settings.data is None else Path(settings.data))
    files = {TRAIN: settings.train, DEV: settings.dev, TEST: settings.test}
    paths = {name: Path(path) for name, path in files.items() if path is not None}
    return load_files(paths, settings.named_columns(vars(settings)))


def load_model(settings: LanguageSettings, seed: int) -> Any:
    """The model, with adapters if they are asked for; ``seed`` is of their weights."""
    dropouts = (
        {} if settings.model_dropout is None else dict.fromkeys(DROPOUTS, settings.model_dropout)
    )
    model = load_any(settings.model, settings.dtype, settings.trust_remote_code, dropouts)
    if model.config.is_encoder_decoder or not model.can_generate():
        raise ModelError(
            f"model '{settings.model}' must be a causal language model, got "
            f"{type(model).__name__}; give another"
        )
    if dropouts and not any(hasattr(model.config, name) for name in dropouts):
        raise ModelError(f"dropout cannot be set for '{settings.model}': its config has none")
    model.config.use_cache = False
    transformers.set_seed(seed)
    return _with_adapters(model, settings) if settings.lora else model


def _positions(model: Any, multiple: int) -> int | None:
    """The tokens that the model takes, such that padding does not exceed them; ``None``: any."""
    positions = Limits.of(model).positions
    return None if positions is None else max(1, positions // multiple) * multiple


def _with_adapters(model: Any, settings: LanguageSettings) -> Any:
    """The model with LoRA adapters, which alone are trained (Hu et al. 2021, 2106.09685)."""
    try:
        import peft
    except ImportError as error:
        raise ModelError("lora needs the package peft; install advreg[peft]") from error
    targets = list(settings.lora_targets)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora,
        lora_alpha=settings.facts()["lora_alpha"],
        lora_dropout=settings.lora_dropout,
        target_modules=targets[0] if targets == ["all-linear"] else targets,
    )
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:
        raise ModelError(
            f"lora_targets must name modules of '{settings.model}', got {', '.join(targets)}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def training_fields(settings: LanguageSettings, seed: int, rows: int) -> dict[str, Any]:
    """TrainingArguments of a run; the user's own win."""
    steps = -(-rows // (settings.batch_size * process_count())) * settings.epochs
    fields = {
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "learning_rate": settings.peak_learning_rate,
        "weight_decay": settings.weight_decay,
        # below 1 a share of the steps, which accumulation and max_steps change
        "warmup_steps": settings.warmup,
        "lr_scheduler_type": "linear",
        "train_sampling_strategy": "group_by_length",
        "logging_steps": max(1, steps // _LOGS_PER_RUN),
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
    }
    return {**usual_fields(seed), **fields, **settings.training}
