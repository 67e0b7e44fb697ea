"""What ``advreg train`` is asked to do with a translation task, checked before anything is
computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advreg.lab.kinds.translation.corpora import CORPORA, Beam
from advreg.lab.kinds.translation.parallel import TEST, TRAIN, TRANSLATION, VALID
from advreg.lab.kinds.translation.subwords import Subwords, translator_folder
from advreg.lab.runs.settings import (
    OnNonFinite,
    Precision,
    RunSettings,
    SettingsError,
    check_least,
    check_positive,
    check_shares,
    read_values,
    setting,
)
from advreg.methods import Method, create, preset
from advreg.methods.base import suggest
from advreg.methods.presets import Preset

TASKS = (TRANSLATION, *CORPORA)
"""What ``--task`` may be: ``translation`` for files of one's own, or a known corpus."""

MODELS = ("transformer-iwslt", "transformer-base", "transformer-big", "transformer-small")
"""Architectures; hf.architectures has them, which takes transformers a while to import."""

Kind = Literal["bpe", "unigram"]
Weights = Literal["best", "last", "average"]
Judge = Literal["bleu", "loss"]
_OWN_FLAGS = {
    "num_train_epochs": "--epochs",
    "learning_rate": "--learning-rate",
    "warmup_steps": "--warmup-steps",
    "label_smoothing_factor": "--label-smoothing",
    "weight_decay": "--weight-decay",
    "max_grad_norm": "--clip-norm",
    "gradient_accumulation_steps": "--update-tokens",
    "seed": "--seed",
    "bf16": "--precision",
    "fp16": "--precision",
    "output_dir": "--output",
    "eval_strategy": "--validate-every",
    "save_strategy": "--validate-every",
}


@dataclass(frozen=True)
class TranslationSettings(RunSettings):
    """Everything that decides what ``advreg train --task translation`` computes."""

    task: str = setting(
        TRANSLATION, f"translation (with files of your own), or one of {', '.join(CORPORA)}"
    )
    data: str | None = setting(
        None,
        "known tasks: folder with mt/CORPUS/SPLIT.LANGUAGE.xz, else ADVREG_DATA, else the hub; "
        "your own: a folder with "
        "train.LANGUAGE",
    )
    source: str | None = setting(None, "language of the source: the ending of its files in --data")
    target: str | None = setting(None, "language of the target")
    train_source: str | None = setting(None, "training text, a sentence a line (also .gz, .xz)")
    train_target: str | None = setting(None, "its translations, aligned")
    valid_source: str | None = setting(None, "validation text")
    valid_target: str | None = setting(None, "its translations")
    test_source: str | None = setting(None, "text that is scored at the end")
    test_target: str | None = setting(None, "its translations")
    tokenised: bool | None = setting(
        None, "is the text tokenised? adds tokenised BLEU; known corpora know"
    )
    model: str = setting(
        "transformer-iwslt", f"one of {', '.join(MODELS)}, or a trained translator's folder"
    )
    model_dropout: float | None = setting(None, "dropout of the model, instead of its own")
    vocabulary: int = setting(
        10_000,
        "subwords of both languages together, or of each with --joint no; a trained model brings "
        "its own",
    )
    joint: bool = setting(True, "one vocabulary for both languages?")
    subwords: Kind = setting("bpe", "how sentencepiece finds subwords")
    character_coverage: float = setting(1.0, "share of the characters that get a subword")
    longest: int = setting(250, "subwords a training sentence may have")
    max_ratio: float = setting(
        2.0, "how many times as long one side of a training pair may be as the other"
    )
    methods: tuple[str, ...] = setting(("standard", "arch"), "methods to train with")
    preset: Preset | None = setting(
        "translation",
        "the paper's options for arch and smart, a small ball for freelb and freeat; what is given "
        "wins",
    )
    seeds: tuple[int, ...] = setting((0,), "seeds; each method is trained once with each")
    epochs: int = setting(50, "passes over the training data")
    max_tokens: int = setting(8192, "positions of a batch on either side, padding counted")
    update_tokens: int = setting(
        64_000, "target tokens of an update; batches are accumulated to come near it"
    )
    round_lengths: int = setting(
        1, "widths of batches are rounded up to a multiple of it; 8 for torch.compile"
    )
    compile_layers: bool | None = setting(
        None, "torch.compile for the layers, each kind of which is compiled once"
    )
    learning_rate: float = setting(
        1e-3, "peak learning rate; falls with the inverse root of the step"
    )
    warmup_steps: int | None = setting(
        None, "updates in which the learning rate rises; 4000, or a fifth of all if that is less"
    )
    label_smoothing: float = setting(0.1, "of the training loss")
    weight_decay: float = setting(1e-4, "of the weights, biases and norms left out")
    clip_norm: float = setting(0.0, "largest norm of a gradient; 0: not clipped")
    precision: Precision = setting("fp32", "floating-point precision of the training")
    validate_every: int = setting(1, "epochs between two validations, each with a checkpoint")
    validate_sentences: int = setting(1000, "sentences translated at a validation; 0: all")
    validate_beam: int = setting(1, "beam size of a validation")
    judge: Judge = setting("bleu", "what the best weights have the best of, on the validation set")
    weights: Weights = setting(
        "best", "which weights are exported and scored; average: of the last validations"
    )
    average: int = setting(5, "validations whose weights are averaged, with --weights average")
    beam: int | None = setting(None, "beam size; the paper's for known tasks, else 5")
    length_penalty: float | None = setting(
        None, "of the beam search; the paper's for known tasks, else 1"
    )
    neighbour_embeddings: str | None = setting(
        None,
        "arch: sentence vectors of another model's folder (same subwords), or of a safetensors "
        "file",
    )
    site: str = setting(
        "tokens", "where the perturbation is added: tokens, block, or encoder=…,decoder=…"
    )
    on_non_finite: OnNonFinite = setting(
        "stop", "when the loss or a gradient is not finite: stop, or skip that update"
    )
    output: str | None = setting(None, "folder of the runs; runs/TASK-MODEL if not given")
    options: Mapping[str, Mapping[str, Any]] = setting({}, "options of each method, by its name")
    training: Mapping[str, Any] = setting({}, "fields of transformers.TrainingArguments")

    kind = "translation"
    _own_flags = _OWN_FLAGS

    @property
    def start(self) -> Path | None:
        """The trained translator to go on from, whose subwords are kept too; none: a model from
        nothing.
        """
        return None if self.model in MODELS else Path(self.model)

    def method(self, name: str) -> Method:
        """A new instance of one of the methods: the options of the preset, then those given."""
        usual = {} if self.preset is None else preset(self.preset, name)
        return create(name, **{**usual, **self.options.get(name, {})})

    def search(self) -> Beam:
        """How the test sets are decoded: as asked for, else as in the paper."""
        spec = CORPORA.get(self.task)
        usual = (spec.decoding if spec is not None else None) or Beam(5, 1.0)
        return Beam(
            usual.beam if self.beam is None else self.beam,
            usual.length_penalty if self.length_penalty is None else self.length_penalty,
        )

    def facts(self) -> dict[str, Any]:
        """What a resumed run must agree on, but for data, method and seed."""
        free = ("task", "data", "methods", "seeds", "output", "options")
        files = [
            f"{split}_{side}" for split in (TRAIN, VALID, TEST) for side in ("source", "target")
        ]
        names = [
            field.name for field in dataclasses.fields(self) if field.name not in (*free, *files)
        ]
        facts = {name: getattr(self, name) for name in names}
        if (
            self.start is not None
        ):  # what is in that folder may change, and other subwords would be other words
            facts["start_subwords"] = Subwords.load(translator_folder(self.start)).fingerprint
        return facts

    def _check_numbers(self) -> None:
        at_least_one = (
            *("vocabulary", "longest", "epochs", "max_tokens", "update_tokens", "round_lengths"),
            *("validate_every", "validate_beam", "average", "max_ratio", "beam"),
        )
        check_least(self, 1, *at_least_one)
        check_least(self, 0, "weight_decay", "clip_norm", "validate_sentences", "warmup_steps")
        check_shares(self, "label_smoothing", "model_dropout")
        if not 0 < self.character_coverage <= 1:
            raise SettingsError(
                f"character_coverage must be above 0 and at most 1, got {self.character_coverage}"
            )
        check_positive("learning_rate", self.learning_rate)
        if self.start is not None and not self.start.is_dir():
            raise SettingsError(
                f"model must be one of {', '.join(MODELS)}, or the folder of a translation run, "
                f"got '{self.model}'"
                f"{suggest(self.model, MODELS)}"
            )

    def _check_data(self) -> None:
        if self.task not in TASKS:
            raise SettingsError(
                f"task must be one of {', '.join(TASKS)}, got "
                f"'{self.task}'{suggest(self.task, TASKS)}"
            )
        files = self.files()
        if self.task != TRANSLATION:
            if files or self.source or self.target:
                raise SettingsError(
                    f"the {self.task} task brings its own data; leave files and languages out, or "
                    f"--task {TRANSLATION}"
                )
        elif not files and not (self.data and self.source and self.target):
            raise SettingsError(
                "translation needs text: give --train-source, --train-target, --valid-source and "
                "--valid-target, or "
                "--data FOLDER with --source LANGUAGE and --target LANGUAGE"
            )
        elif files and VALID not in files:
            raise SettingsError(
                "translation needs text to validate on; give --valid-source and --valid-target"
            )
        elif files and self.data:
            raise SettingsError(
                "give either files (--train-source …) or a folder (--data), not both"
            )

    def files(self) -> dict[str, tuple[str, str]]:
        """The files given, by split; one side without the other is refused."""
        found = {}
        for split in (TRAIN, VALID, TEST):
            sides = getattr(self, f"{split}_source"), getattr(self, f"{split}_target")
            if all(sides):
                found[split] = sides
            elif any(sides):
                missing = "source" if sides[0] is None else "target"
                raise SettingsError(f"{split} text needs both sides; give --{split}-{missing} too")
        if found and TRAIN not in found:
            raise SettingsError(
                "translation needs text to train on; give --train-source and --train-target"
            )
        return found


def read_translation_settings(
    path: Path | None, flags: Mapping[str, Any], training: Mapping[str, Any]
) -> TranslationSettings:
    """Defaults, then what suits a known task, then the TOML file, then the flags; a later one wins.

    Args:
        path: a TOML file with the settings by name, a table for a method's options, and
            ``[training]``.
        flags: settings, and options of methods: an option goes to each of the methods that has it.
        training: fields of TrainingArguments.
    """
    return TranslationSettings(
        **read_values(TranslationSettings, path, flags, training, _usual_settings)
    )


def _usual_settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What suits a known corpus."""
    spec = CORPORA.get(given.get("task", TRANSLATION))
    return {} if spec is None else spec.settings
