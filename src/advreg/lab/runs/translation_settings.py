"""Settings of a translation run, checked before anything is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from advreg.core.checks import (
    check_count,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
    suggest,
)
from advreg.core.options import Given, Preset
from advreg.lab.kinds.translation.corpora import CORPORA, Beam
from advreg.lab.kinds.translation.parallel import TEST, TRAIN, TRANSLATION, VALID
from advreg.lab.kinds.translation.subwords import Subwords, translator_folder
from advreg.lab.runs.settings import RunSettings, SettingsError, check_seeds, setting

TASKS = (TRANSLATION, *CORPORA)
"""What ``--task`` may be: ``translation`` for the user's files, or a known corpus."""

MODELS = ("transformer-iwslt", "transformer-base", "transformer-big", "transformer-small")
"""Architectures; :mod:`advreg.lab.kinds.architectures`, which builds them, imports transformers."""

Kind = Literal["bpe", "unigram"]
Weights = Literal["best", "last", "average"]
Judge = Literal["bleu", "loss"]


def _check_coverage(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise SettingsError(f"{name} must be above 0 and at most 1, got {value}")


def _check_ratio(name: str, value: float) -> None:
    if not 1 <= value < math.inf:
        raise SettingsError(f"{name} must be 1 or more, got {value}")


@dataclass(frozen=True)
class TranslationSettings(RunSettings):
    """Settings of a translation run."""

    tasks: ClassVar[tuple[str, ...]] = TASKS
    kind: ClassVar[str] = "translation"
    own_files: ClassVar[str] = TRANSLATION
    named_after: ClassVar[tuple[str, ...]] = ("train_source", "data")

    task: str = setting(
        TRANSLATION,
        f"translation (with files of your own), or one of {', '.join(CORPORA)}",
        "data",
        main=3,
    )
    data: str | None = setting(
        None,
        "known tasks: folder with mt/CORPUS/SPLIT.LANGUAGE.xz, else ADVREG_DATA, else the hub; "
        "your own: a folder with train.LANGUAGE",
        "data",
    )
    source: str | None = setting(
        None, "language of the source: the ending of its files in --data", "files"
    )
    target: str | None = setting(None, "language of the target", "files")
    train_source: str | None = setting(
        None, "training text, one sentence per line (also .gz, .xz)", "files"
    )
    train_target: str | None = setting(None, "its translations, aligned", "files")
    valid_source: str | None = setting(None, "validation text", "files")
    valid_target: str | None = setting(None, "its translations", "files")
    test_source: str | None = setting(None, "test text, scored at the end", "files")
    test_target: str | None = setting(None, "its translations", "files")
    tokenised: bool | None = setting(
        None, "whether the text is tokenised, which adds tokenised BLEU; known corpora set it"
    )
    model: str = setting(
        MODELS[0], f"one of {', '.join(MODELS)}, or a trained translator's folder", main=4
    )
    model_dropout: float | None = setting(
        None,
        "dropout of the model; its default if not given",
        tunes=True,
        check=check_share,
    )
    vocabulary: int = setting(
        10_000,
        "subwords of both languages together, or of each with --joint no; a trained model brings "
        "its own",
        check=check_count,
    )
    joint: bool = setting(True, "whether both languages share a vocabulary")
    subwords: Kind = setting("bpe", "sentencepiece model")
    character_coverage: float = setting(
        1.0, "share of the characters that get a subword", check=_check_coverage
    )
    longest: int = setting(250, "maximum subwords of a training sentence", check=check_count)
    max_ratio: float = setting(
        2.0,
        "maximum ratio of lengths in a training pair",
        check=_check_ratio,
    )
    preset: Preset | None = setting(
        "translation",
        "the paper's options for arch and smart, a small ball for freelb and freeat; options that "
        "are given win",
        "recipe",
    )
    seeds: tuple[int, ...] = setting(
        (0,),
        "number of seeds, or a list: 0,5,7",
        "run",
        main=6,
        sets=("seed",),
        check=check_seeds,
    )
    epochs: int = setting(
        50,
        "passes over the training data",
        main=7,
        tunes=True,
        sets=("num_train_epochs",),
        check=check_count,
    )
    max_tokens: int = setting(
        8192, "positions per batch on either side, including padding", check=check_count
    )
    update_tokens: int = setting(
        64_000,
        "target tokens per update, approximated by accumulating batches",
        tunes=True,
        sets=("gradient_accumulation_steps",),
        check=check_count,
    )
    learning_rate: float = setting(
        1e-3,
        "peak learning rate, followed by inverse-square-root decay",
        main=8,
        tunes=True,
        sets=("learning_rate",),
        check=check_positive,
    )
    warmup_steps: int | None = setting(
        None,
        "warm-up updates; 4000, or a fifth of all if that is less",
        tunes=True,
        sets=("warmup_steps",),
        check=partial(check_whole, least=0),
    )
    label_smoothing: float = setting(
        0.1,
        "label smoothing of the training loss",
        tunes=True,
        sets=("label_smoothing_factor",),
        check=check_share,
    )
    weight_decay: float = setting(
        1e-4,
        "weight decay, except for biases and norms",
        tunes=True,
        sets=("weight_decay",),
        check=check_not_negative,
    )
    clip_norm: float = setting(
        0.0,
        "maximum gradient norm; 0 disables clipping",
        sets=("max_grad_norm",),
        check=check_not_negative,
    )
    validate_every: int = setting(
        1,
        "epochs between two validations, each with a checkpoint",
        sets=("eval_strategy", "save_strategy"),
        check=check_count,
    )
    validate_sentences: int = setting(
        1000,
        "sentences to translate at each validation; 0: all",
        check=partial(check_whole, least=0),
    )
    validate_beam: int = setting(1, "beam size of a validation", check=check_count)
    judge: Judge = setting("bleu", "validation score that chooses the best weights")
    weights: Weights = setting(
        "best", "weights to export and score; average: of the last validations"
    )
    average: int = setting(
        5, "number of validations to average, with --weights average", check=check_count
    )
    beam: int | None = setting(
        None, "beam size; the paper's for known tasks, else 5", check=check_count
    )
    length_penalty: float | None = setting(
        None, "length penalty; the paper's for known tasks, else 1"
    )
    neighbour_embeddings: str | None = setting(
        None,
        "arch: sentence vectors of another model's folder (same subwords), or of a safetensors "
        "file",
        varies=True,
    )

    @classmethod
    def usual(cls, given: Given) -> Given:
        """Defaults for a known corpus."""
        spec = CORPORA.get(given["task"])
        return {} if spec is None else spec.settings

    @property
    def start(self) -> Path | None:
        """The trained translator whose training continues, with its subwords; ``None``: a model
        from scratch.
        """
        return None if self.model in MODELS else Path(self.model)

    def search(self) -> Beam:
        """The search for the test sets: as given, by default as in the paper."""
        spec = CORPORA.get(self.task)
        usual = (spec.decoding if spec is not None else None) or Beam(5, 1.0)
        return Beam(
            usual.beam if self.beam is None else self.beam,
            usual.length_penalty if self.length_penalty is None else self.length_penalty,
        )

    def _effective(self) -> Given:
        """A fingerprint of the subwords of the initial model, since its folder may change."""
        if self.start is None:
            return {}
        return {"start_subwords": Subwords.load(translator_folder(self.start)).fingerprint}

    def _check_data(self) -> None:
        if self.start is not None and not self.start.is_dir():
            raise SettingsError(
                f"model must be one of {', '.join(MODELS)}, or the folder of a translation run, "
                f"got '{self.model}'{suggest(self.model, MODELS)}"
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
        """The given files, by split; both sides are required."""
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


SETTINGS = TranslationSettings
