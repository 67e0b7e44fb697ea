"""Settings of fine-tuning a language model, checked before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from advreg.core.checks import (
    check_count,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from advreg.core.options import Given, Preset
from advreg.lab.kinds import SCRATCH
from advreg.lab.kinds.language.description import KNOWN, LANGUAGE
from advreg.lab.kinds.language.forms import COLUMNS, TEXT_SUFFIXES, find_form, is_unlabelled
from advreg.lab.kinds.sources import DataError, Table, columns_of
from advreg.lab.runs.settings import RunSettings, SettingsError, check_seeds, setting

Dtype = Literal["float32", "bfloat16"]
_PATTERNS = {"gsm8k": "#### (.*)"}
_LORA_RATE, _FULL_RATE = 3e-4, 1e-4


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{name} must be a regular expression, got {pattern!r}: {error}"
        ) from error


@dataclass(frozen=True)
class LanguageSettings(RunSettings):
    """Settings of a run of fine-tuning a causal language model."""

    tasks: ClassVar[tuple[str, ...]] = (LANGUAGE, *KNOWN)
    kind: ClassVar[str] = "language"
    own_files: ClassVar[str] = LANGUAGE
    named_after: ClassVar[tuple[str, ...]] = ("train",)
    common_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": [3e-5, 1e-4, 3e-4],
        "weight_decay": [0.0, 0.1],
        "epochs": [1, 3],
    }

    task: str = setting(
        LANGUAGE, f"language (with files of your own), or one of {', '.join(KNOWN)}", "data", main=3
    )
    data: str | None = setting(
        None, "folder with sft/TASK/SPLIT.jsonl.gz of the named tasks", "data"
    )
    train: str | None = setting(
        None, "a csv, tsv, jsonl or parquet file of text, prompts or chats, or a .txt", "files"
    )
    dev: str | None = setting(
        None, "samples to evaluate on; without it a tenth of the training file is held out", "files"
    )
    test: str | None = setting(None, "samples that are scored at the end", "files")
    text_column: str | None = setting(None, "column of plain text", "files")
    prompt_column: str | None = setting(None, "column of the prompt; guessed if not given", "files")
    completion_column: str | None = setting(
        None, "column of the answer to the prompt; guessed if not given", "files"
    )
    messages_column: str | None = setting(
        None, "column of the turns of a chat, with role and content; guessed if not given", "files"
    )
    model: str = setting(SCRATCH, "a causal language model: a folder, or a name on the hub", main=4)
    preset: Preset | None = setting("fine-tuning", "", "recipe")
    seeds: tuple[int, ...] = setting(
        (0,), "how many seeds, or which: 0,5,7", "run", main=6, sets=("seed",), check=check_seeds
    )
    epochs: int = setting(
        3, "passes over the training data", main=7, tunes=True, sets=("num_train_epochs",),
        check=check_count,
    )  # fmt: skip
    batch_size: int = setting(
        32, "samples per step, in each process", tunes=True,
        sets=("per_device_train_batch_size",), check=check_count,
    )  # fmt: skip
    learning_rate: float | None = setting(
        None, f"peak learning rate; {_FULL_RATE:g}, with --lora {_LORA_RATE:g}", main=8,
        tunes=True, sets=("learning_rate",), check=check_positive,
    )  # fmt: skip
    warmup: float = setting(
        0.05, "share of the steps in which the learning rate rises", tunes=True, check=check_share
    )
    weight_decay: float = setting(
        0.0, "of the weights except biases and norms", tunes=True, sets=("weight_decay",),
        check=check_not_negative,
    )  # fmt: skip
    max_length: int = setting(
        512, "cut training samples to this number of tokens; plain text is divided", tunes=False,
        check=partial(check_whole, least=2),
    )  # fmt: skip
    round_lengths: int = setting(8, "", check=check_count)
    model_dropout: float | None = setting(
        None, "dropout of the model, instead of its default", tunes=True, check=check_share
    )
    dtype: Dtype = setting("float32", "type of the weights")
    lora: int = setting(
        0, "rank of LoRA adapters, which are trained instead of the model; 0: none",
        check=partial(check_whole, least=0),
    )  # fmt: skip
    lora_alpha: int | None = setting(
        None, "scale of the adapters; twice the rank if not given", check=check_count
    )
    lora_dropout: float = setting(0.0, "dropout in front of the adapters", check=check_share)
    lora_targets: tuple[str, ...] = setting(
        ("all-linear",), "modules that get an adapter: names, or all-linear"
    )
    answer_pattern: str | None = setting(
        None, "score answers by exact match of what this regular expression finds, such as "
        "'#### (.*)'", check=_check_pattern,
    )  # fmt: skip
    generate: bool | None = setting(
        None, "generate answers to score? if not given: with several references or a pattern"
    )
    answer_length: int = setting(256, "most tokens of a generated answer", check=check_count)
    evaluate_on: int = setting(
        0, "samples of each evaluation set that are scored, the first ones; 0: all",
        check=partial(check_whole, least=0),
    )  # fmt: skip
    trust_remote_code: bool = setting(
        False, "run code that comes with the model; only as a flag, not in a config file"
    )

    @classmethod
    def claims(cls, given: Given) -> bool:
        """Whether the training file holds text without labels, prompts or chats."""
        train = given.get("train")
        if not train:
            return False
        if cls.named_columns(given).keys() - {"text"} or str(train).endswith(TEXT_SUFFIXES):
            return True
        try:
            return is_unlabelled(columns_of(Path(train)))
        except DataError:
            return False  # reported by the kind that reads it

    @classmethod
    def inspect(cls, given: Given) -> None:
        """Refuse a training file without the columns of a form."""
        train = given.get("train")
        if train and not str(train).endswith(TEXT_SUFFIXES):
            columns = columns_of(Path(train))
            if columns:
                find_form(Table(Path(train), columns, ()), cls.named_columns(given))

    @staticmethod
    def named_columns(given: Given) -> dict[str, str]:
        """The named columns, by what they hold."""
        named = {name: given.get(f"{name}_column") for name in COLUMNS}
        return {name: column for name, column in named.items() if column}

    @property
    def pattern(self) -> str | None:
        """Finds the part of an answer that must match."""
        return self.answer_pattern or _PATTERNS.get(self.task)

    @property
    def peak_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return _LORA_RATE if self.lora else _FULL_RATE

    def _effective(self) -> Given:
        return {
            "learning_rate": self.peak_learning_rate,
            "answer_pattern": self.pattern,
            "lora_alpha": (self.lora_alpha or 2 * self.lora) if self.lora else None,
        }

    def _check_data(self) -> None:
        if self.model == SCRATCH:
            raise SettingsError(
                f"model must be a pretrained causal language model, got '{SCRATCH}'; give --model "
                "FOLDER or a name on the hub"
            )
        if self.task != LANGUAGE and (self.train or self.dev or self.test):
            raise SettingsError(
                f"the {self.task} task brings its own data; leave --train, --dev and --test out, "
                f"or --task {LANGUAGE}"
            )
        if self.task == LANGUAGE and self.train is None:
            raise SettingsError(f"task '{LANGUAGE}' needs a training file; give --train FILE")
        if self.task == LANGUAGE and self.data is not None:
            raise SettingsError(
                f"data is a folder of the known tasks {', '.join(KNOWN)}, but the task is "
                f"{LANGUAGE}; give --train FILE instead, or --task NAME too"
            )


SETTINGS = LanguageSettings
