"""What ``advreg train`` is asked to do, checked before anything is computed."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from advreg.methods import Method, create, describe, preset, registry
from advreg.methods.base import suggest
from advreg.methods.coerce import coerce
from advreg.methods.presets import Preset, training_preset
from advreg.recipes.understanding import TASKS

Precision = Literal["fp32", "bf16", "fp16"]
OnNonFinite = Literal["stop", "skip"]

DOCSTRINGS = "docstrings"
FILES = "files"

# The built-in task with the small model; chosen from the runs in results/default_task.jsonl.
_DEFAULT_TASK_OPTIONS: dict[str, dict[str, Any]] = {"arch": {"radius": 0.3, "step_size": 0.3, "refresh_every": 3}}
_DEFAULT_TASK_LENGTH = 32


# Fields of TrainingArguments that are settings of ours; set twice, they would make the record untrue.
_OWN_FLAGS = {
    "num_train_epochs": "--epochs",
    "per_device_train_batch_size": "--batch-size",
    "learning_rate": "--learning-rate",
    "seed": "--seed",
    "bf16": "--precision",
    "fp16": "--precision",
    "output_dir": "--output",
}
_SEEDS = 2**32  # what numpy takes


class SettingsError(ValueError):
    """A setting cannot be used."""


def setting(default: Any, help: str) -> Any:
    """A setting with its help text."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: default, metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides what ``advreg train`` computes."""

    task: str = setting(
        DOCSTRINGS, f"docstrings (the built-in task), files (--train and --dev), or one of {', '.join(TASKS)}"
    )
    data: str | None = setting(
        None,
        "folder with TASK/SPLIT.jsonl.gz of the named tasks; without it ADVREG_DATA, else the Hugging Face hub",
    )
    train: str | None = setting(None, "training samples: a csv, tsv, jsonl or parquet file")
    dev: str | None = setting(None, "samples to evaluate on; without it a tenth of the training file is held out")
    text_column: str | None = setting(None, "column of the text; guessed if not given")
    pair_column: str | None = setting(None, "column of the second text of a pair; guessed if not given")
    label_column: str | None = setting(None, "column of the label; guessed if not given")
    model: str = setting("small", "small (two layers, from scratch), minilm, mpnet, a folder, or a name on the hub")
    methods: tuple[str, ...] = setting(("standard", "arch"), "methods to train with")
    preset: Preset | None = setting(
        None, "the paper's options for arch and smart; understanding: of the training too; what is given wins"
    )
    seeds: tuple[int, ...] = setting((0, 1), "seeds; each method is trained once with each")
    epochs: int = setting(12, "passes over the training data")
    batch_size: int = setting(32, "samples per step, in each process")
    learning_rate: float | None = setting(None, "peak learning rate; 1e-3 for small, 5e-5 for other models")
    warmup: float = setting(0.1, "share of the steps in which the learning rate rises")
    precision: Precision = setting("fp32", "floating-point precision of the training")
    max_length: int | None = setting(
        None, "tokens a text is cut to; 128 or what the model takes (small: 64, built-in task: 32)"
    )
    round_lengths: int = setting(
        1, "widths of batches are rounded up to a multiple of it; 32 for torch.compile with CUDA graphs"
    )
    encoder_dropout: float | None = setting(None, "dropout of the encoder, instead of the model's own")
    head_dropout: float | None = setting(None, "dropout of the classification head, instead of the model's own")
    site: str = setting("tokens", "where the perturbation is added: tokens, block, or a module's dotted name")
    trust_remote_code: bool = setting(False, "run code that comes with the model; only as a flag, not in a config file")
    on_non_finite: OnNonFinite = setting("stop", "when the loss or a gradient is not finite: stop, or skip that update")
    output: str | None = setting(None, "folder of the runs; runs/TASK-MODEL if not given")
    options: Mapping[str, Mapping[str, Any]] = setting({}, "options of each method, by its name")
    training: Mapping[str, Any] = setting({}, "fields of transformers.TrainingArguments")

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_data()
        for name in self.options:
            if name not in registry:
                raise SettingsError(
                    f"options are given for the method '{name}'{suggest(name, registry)}, which is unknown"
                )
        for name in (*self.methods, *self.options):
            self.method(name)
        for name in self.training:
            if name in _OWN_FLAGS:
                raise SettingsError(f"training field '{name}' has a setting of its own; use {_OWN_FLAGS[name]} instead")

    def method(self, name: str) -> Method:
        """A new instance of one of the methods, with its options."""
        return create(name, **{**self._usual_options(name), **self.options.get(name, {})})

    def _usual_options(self, name: str) -> dict[str, Any]:
        """Options that hold where the user gave none: a preset, or what suits the built-in task."""
        if self.preset is not None:
            return preset(self.preset, name)
        return _DEFAULT_TASK_OPTIONS.get(name, {}) if self._is_built_in else {}

    @property
    def _is_built_in(self) -> bool:
        return (self.task, self.model) == (DOCSTRINGS, "small")

    @property
    def text_length(self) -> int | None:
        """Tokens a text is cut to; ``None`` leaves it to the model."""
        if self.max_length is None and self._is_built_in:
            return _DEFAULT_TASK_LENGTH
        return self.max_length

    @property
    def peak_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-3 if self.model == "small" else 5e-5

    def facts(self) -> dict[str, Any]:
        """What a resumed run must agree on, but for data, method and seed."""
        same = (
            *("model", "site", "epochs", "batch_size", "warmup", "precision", "encoder_dropout", "head_dropout"),
            *("round_lengths", "on_non_finite", "trust_remote_code"),
        )
        return {
            **{name: getattr(self, name) for name in same},
            "learning_rate": self.peak_learning_rate,
            "max_length": self.text_length,
            "training": dict(self.training),
        }

    def _check_numbers(self) -> None:
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise SettingsError(f"methods must be different ones, at least one, got {list(self.methods)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise SettingsError(f"seeds must be different numbers, at least one, got {list(self.seeds)}")
        for seed in self.seeds:
            if not 0 <= seed < _SEEDS:
                raise SettingsError(f"seeds must be at least 0 and below {_SEEDS}, got {seed}")
        for name in ("epochs", "batch_size", "round_lengths"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if not (math.isfinite(self.peak_learning_rate) and self.peak_learning_rate > 0):
            raise SettingsError(f"learning_rate must be positive, got {self.learning_rate}")
        for name in ("warmup", "encoder_dropout", "head_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise SettingsError(f"{name} must be at least 0 and below 1, got {value}")

    def _check_data(self) -> None:
        known = (DOCSTRINGS, FILES, *TASKS)
        if self.task not in known:
            raise SettingsError(f"task must be one of {', '.join(known)}, got '{self.task}'{suggest(self.task, known)}")
        if self.task == FILES and self.train is None:
            raise SettingsError("task 'files' needs a training file; give --train FILE")
        if self.task != FILES and (self.train or self.dev):
            raise SettingsError(
                f"the {self.task} task brings its own data; leave --train and --dev out, or --task files"
            )
        if self.data is not None and self.task not in TASKS:
            raise SettingsError(f"data is a folder of named tasks, but the task is {self.task}; give --task NAME too")


def read_settings(path: Path | None, flags: Mapping[str, Any], training: Mapping[str, Any]) -> TrainSettings:
    """Defaults, then the preset's training settings, then the TOML file, then the flags; a later one wins.

    The file holds the settings by name; a table named like a method (``[arch]``) holds its options, and ``[training]``
    any fields of TrainingArguments.

    Args:
        path: the TOML file.
        flags: settings, and options of methods: an option goes to each of the methods that has it.
        training: fields of TrainingArguments.
    """
    values = dict(read_toml(path)) if path is not None else {}
    for name in (*registry, "training"):
        if not isinstance(values.get(name, {}), dict):
            raise SettingsError(f"config file '{path}': {name} must be a table, [{name}], got {values[name]!r}")
    if "trust_remote_code" in values:
        raise SettingsError(
            f"config file '{path}': trust_remote_code must be given as a flag; a file cannot vouch for code"
        )
    options = {name: dict(values.pop(name)) for name in registry if name in values}
    _require_known(values, path)
    merged = {**values, **{name: value for name, value in flags.items() if name in _names()}}
    hints = get_type_hints(TrainSettings)
    typed = {name: _typed(name, value, hints[name]) for name, value in merged.items()}
    if typed.get("train") and "task" not in typed:
        typed["task"] = FILES
    if typed.get("preset") is not None:
        typed = {**training_preset(typed["preset"], typed.get("task", DOCSTRINGS)), **typed}
    loose = {name: value for name, value in flags.items() if name not in _names()}
    for method, given in options_for(typed.get("methods", TrainSettings.methods), loose).items():
        options[method] = {**options.get(method, {}), **given}
    typed |= {"options": options, "training": {**values.get("training", {}), **training}}
    return TrainSettings(**typed)


def options_for(methods: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each option to those of the methods that have it; one that none has is an error."""
    has = {name: [option.name for option in describe(name)] for name in methods}
    for option in given:
        if not any(option in names for names in has.values()):
            known = sorted({name for names in has.values() for name in names})
            raise SettingsError(
                f"none of the methods {', '.join(methods)} has the option '{option}'{suggest(option, known)}"
            )
    return {name: {option: value for option, value in given.items() if option in has[name]} for name in methods}


def _names() -> list[str]:
    return [field.name for field in dataclasses.fields(TrainSettings)]


def _typed(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_typed(name, item, get_args(hint)[0]) for item in items)
    found = coerce(name, value, hint)
    if hint in (str, str | None) and found is not None and not (isinstance(found, str) and found):
        raise SettingsError(f"{name} must be a text, not empty, got {value!r}; correct it or leave it out")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a config file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"config file '{path}' does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"config file '{path}' cannot be read: {error}") from None


def _require_known(values: Mapping[str, Any], path: Path | None) -> None:
    known = [name for name in _names() if name != "options"]
    for name in values:
        if name not in known:
            raise SettingsError(
                f"config file '{path}' has the unknown key '{name}'{suggest(name, [*known, *registry])}; "
                f"it may have {', '.join(known)}, and a table for each of {', '.join(registry)}"
            )
