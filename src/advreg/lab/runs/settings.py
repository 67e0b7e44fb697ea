"""What ``advreg train`` is asked to do, checked before anything is computed."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from advreg.lab.kinds.classification.description import DOCSTRINGS as DOCSTRINGS
from advreg.lab.kinds.classification.description import FILES as FILES
from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.kinds.translation.corpora import CORPORA
from advreg.lab.kinds.translation.parallel import TRANSLATION
from advreg.lab.runs.training_presets import training_preset
from advreg.methods import Method, create, describe, preset, registry
from advreg.methods.base import by_part, options_named, suggest, validate
from advreg.methods.coerce import coerce
from advreg.methods.presets import Preset

Precision = Literal["fp32", "bf16", "fp16"]
OnNonFinite = Literal["stop", "skip"]

# The built-in task with the small model; chosen from the runs in results/default_task.jsonl.
_DEFAULT_TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "arch": {"radius": 0.3, "step_size": 0.3, "refresh_every": 3},
    "smart": {"radius": 0.3, "step_size": 0.3},
}
_DEFAULT_TASK_LENGTH = 32

_OWN_FLAGS = {
    "num_train_epochs": "--epochs",
    "per_device_train_batch_size": "--batch-size",
    "learning_rate": "--learning-rate",
    "seed": "--seed",
    "bf16": "--precision",
    "fp16": "--precision",
    "output_dir": "--output",
}
_COMPUTED = (
    "compile_layers",
    "short_attention",  # in older records; its kernels were removed
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
)
_SEEDS = 2**32  # what numpy takes
_TABLES = ("options", "training")  # of a config file


class SettingsError(ValueError):
    """A setting cannot be used."""


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those of ``torch.compile`` and of kernels, which say how a run is computed
    and not what: they may change while it is interrupted, as when a graph cannot be compiled on
    another machine.

    Example:
        >>> training = {"torch_compile": True, "max_steps": 9}
        >>> decisive({"epochs": 3, "compile_layers": True, "training": training})
        {'epochs': 3, 'training': {'max_steps': 9}}
    """
    return {
        name: decisive(value) if name == "training" else value
        for name, value in settings.items()
        if name not in _COMPUTED
    }


def setting(default: Any, help: str) -> Any:
    """A setting with its help text."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: default, metadata={"help": help})
    return field(default=default, metadata={"help": help})


class RunSettings(ABC):
    """What decides a run, of any kind of task: checked as it is made."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, Any]
    compile_layers: bool | None
    task: str
    model: str
    epochs: int
    precision: Precision
    output: str | None
    kind: ClassVar[str]  # of task: a folder of advreg.lab.kinds
    _own_flags: ClassVar[Mapping[str, str]]  # by the field of TrainingArguments that they set

    def __post_init__(self) -> None:
        methods = tuple(map(registry.canonical, self.methods))
        options = {registry.canonical(name): own for name, own in self.options.items()}
        vars(self).update(methods=methods, options=options)
        check_runs(methods, self.seeds, options)
        self._check_numbers()
        self._check_data()
        for name in (*self.methods, *self.options):
            self.method(name)
        check_fields(self.training, self._own_flags)
        check_compiled_once(self.compile_layers, self.training)

    @abstractmethod
    def method(self, name: str) -> Method:
        """A new instance of one of the methods, with its options."""

    def require(self, samples: int) -> None:
        """Refuse methods that so many training samples or this machine do not allow."""
        for name in self.methods:
            validate(self.method(name), samples)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a resumed run must agree on, but for data, method and seed."""

    @abstractmethod
    def _check_numbers(self) -> None: ...

    @abstractmethod
    def _check_data(self) -> None: ...


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """Everything that decides what ``advreg train`` computes."""

    task: str = setting(
        DOCSTRINGS,
        f"docstrings (the built-in task), files (--train and --dev), one of {', '.join(TASKS)}; or "
        "of translation: "
        f"{', '.join((TRANSLATION, *CORPORA))}",
    )
    data: str | None = setting(
        None,
        "folder with TASK/SPLIT.jsonl.gz of the named tasks; without it ADVREG_DATA, else the "
        "Hugging Face hub",
    )
    train: str | None = setting(None, "training samples: a csv, tsv, jsonl or parquet file")
    dev: str | None = setting(
        None, "samples to evaluate on; without it a tenth of the training file is held out"
    )
    text_column: str | None = setting(None, "column of the text; guessed if not given")
    pair_column: str | None = setting(
        None, "column of the second text of a pair; guessed if not given"
    )
    label_column: str | None = setting(None, "column of the label; guessed if not given")
    model: str = setting(
        "small",
        "small (two layers, from scratch), minilm, mpnet, a folder, or a name on the hub; of "
        "translation: "
        "transformer-iwslt (the default there), transformer-base, transformer-big, "
        "transformer-small",
    )
    methods: tuple[str, ...] = setting(("standard", "arch"), "methods to train with")
    preset: Preset | None = setting(
        None,
        "options for arch and smart, and of the training: fine-tuning, or the paper's; what is "
        "given wins",
    )
    seeds: tuple[int, ...] = setting((0, 1), "seeds; each method is trained once with each")
    epochs: int = setting(12, "passes over the training data")
    batch_size: int = setting(32, "samples per step, in each process")
    learning_rate: float | None = setting(
        None, "peak learning rate; 1e-3 for small, 5e-5 for other models"
    )
    warmup: float = setting(0.1, "share of the steps in which the learning rate rises")
    precision: Precision = setting("fp32", "floating-point precision of the training")
    max_length: int | None = setting(
        None, "tokens a text is cut to; 128 or what the model takes (small: 64, built-in task: 32)"
    )
    round_lengths: int = setting(
        1,
        "widths of batches are rounded up to a multiple of it; 32 for torch.compile with CUDA "
        "graphs",
    )
    compile_layers: bool | None = setting(
        None, "torch.compile for the layers, each kind of which is compiled once"
    )
    encoder_dropout: float | None = setting(
        None, "dropout of the encoder, instead of the model's own"
    )
    head_dropout: float | None = setting(
        None, "dropout of the classification head, instead of the model's own"
    )
    site: str = setting(
        "tokens", "where the perturbation is added: tokens, block, or a module's dotted name"
    )
    trust_remote_code: bool = setting(
        False, "run code that comes with the model; only as a flag, not in a config file"
    )
    on_non_finite: OnNonFinite = setting(
        "stop", "when the loss or a gradient is not finite: stop, or skip that update"
    )
    output: str | None = setting(None, "folder of the runs; runs/TASK-MODEL if not given")
    options: Mapping[str, Mapping[str, Any]] = setting({}, "options of each method, by its name")
    training: Mapping[str, Any] = setting({}, "fields of transformers.TrainingArguments")

    kind = "classification"
    _own_flags = _OWN_FLAGS

    def method(self, name: str) -> Method:
        return create(name, **{**self._usual_options(name), **self.options.get(name, {})})

    def _usual_options(self, name: str) -> dict[str, Any]:
        """Options that hold where the user gave none: a preset, or what suits the built-in task."""
        if self.preset is not None:
            return preset(self.preset, name)
        if not self._is_built_in:
            return {}
        return by_part(name, lambda part: _DEFAULT_TASK_OPTIONS.get(part, {}))

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
            *(
                "model",
                "site",
                "epochs",
                "batch_size",
                "warmup",
                "precision",
                "encoder_dropout",
                "head_dropout",
            ),
            *("round_lengths", "compile_layers", "on_non_finite", "trust_remote_code"),
        )
        return {
            **{name: getattr(self, name) for name in same},
            "learning_rate": self.peak_learning_rate,
            "max_length": self.text_length,
            "training": dict(self.training),
        }

    def _check_numbers(self) -> None:
        check_least(self, 1, "epochs", "batch_size", "round_lengths")
        check_positive("learning_rate", self.peak_learning_rate)
        check_shares(self, "warmup", "encoder_dropout", "head_dropout")

    def _check_data(self) -> None:
        if self.task not in (DOCSTRINGS, FILES, *TASKS):
            known = (DOCSTRINGS, FILES, *TASKS, TRANSLATION, *CORPORA)
            raise SettingsError(
                f"task must be one of {', '.join(known)}, got "
                f"'{self.task}'{suggest(self.task, known)}"
            )
        if self.task in (FILES, DOCSTRINGS) and self.dev and not self.train:
            raise SettingsError(
                f"dev '{self.dev}' needs a training file of its kind; give --train FILE too"
            )
        if self.task == FILES and self.train is None:
            raise SettingsError("task 'files' needs a training file; give --train FILE")
        if self.task != FILES and (self.train or self.dev):
            raise SettingsError(
                f"the {self.task} task brings its own data; leave --train and --dev out, or --task "
                "files"
            )
        if self.data is not None and self.task not in TASKS:
            raise SettingsError(
                f"data is a folder of named tasks, but the task is {self.task}; give --task NAME "
                "too"
            )


# ---- checks that settings of every kind share


def check_runs(methods: Sequence[str], seeds: Sequence[int], options: Iterable[str]) -> None:
    """Methods that are known, and seeds; each once. ``options`` are the methods that options are
    given for.
    """
    if not methods or len(set(methods)) != len(methods):
        raise SettingsError(f"methods must be different ones, at least one, got {list(methods)}")
    for name in methods:
        if name not in registry:
            raise SettingsError(registry.unknown(name))
    for name in options:
        if name not in registry:
            raise SettingsError(
                f"options are given for the method '{name}'{suggest(name, registry)}, which is "
                "unknown"
            )
    if not seeds or len(set(seeds)) != len(seeds):
        raise SettingsError(f"seeds must be different numbers, at least one, got {list(seeds)}")
    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            raise SettingsError(f"seeds must be at least 0 and below {_SEEDS}, got {seed}")


def check_fields(training: Iterable[str], own_flags: Mapping[str, str]) -> None:
    """Fields of TrainingArguments that are settings of ours would make the record untrue if they
    were set twice.
    """
    for name in training:
        if name in own_flags:
            raise SettingsError(
                f"training field '{name}' has a setting of its own; use {own_flags[name]} instead"
            )


def check_compiled_once(compile_layers: bool | None, training: Mapping[str, Any]) -> None:
    for name in (
        "torch_compile",
        "torch_compile_backend",
        "torch_compile_mode",
    ):  # each of them compiles the model
        if compile_layers and training.get(name):
            raise SettingsError(
                f"compile_layers must be off with {name}={training[name]}, which compiles the "
                "model as a whole; "
                "leave one of them out"
            )


def check_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not least <= value < math.inf:
            raise SettingsError(f"{name} must be {least} or more, got {value}")


def check_shares(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            raise SettingsError(f"{name} must be at least 0 and below 1, got {value}")


def check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise SettingsError(f"{name} must be positive, got {value}")


# ---- reading


def read_settings(
    path: Path | None, flags: Mapping[str, Any], training: Mapping[str, Any]
) -> TrainSettings:
    """Defaults, then the preset's training settings, then the TOML file, then the flags; a later
    one wins.

    The file holds the settings by name; a table named like a method (``[arch]``) holds its options,
    and ``[training]`` any fields of TrainingArguments.

    Args:
        path: the TOML file.
        flags: settings, and options of methods: an option goes to each of the methods that has it.
        training: fields of TrainingArguments.
    """
    return TrainSettings(**read_values(TrainSettings, path, flags, training, _usual_settings))


def _usual_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What holds where nothing else is given."""
    task, chosen = (
        given.get("task", FILES if given.get("train") else DOCSTRINGS),
        given.get("preset"),
    )
    return {"task": task, **(training_preset(chosen, task) if chosen is not None else {})}


def read_values(
    kind: type[Any],
    path: Path | None,
    flags: Mapping[str, Any],
    training: Mapping[str, Any],
    usual: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """The values of a kind of settings; ``usual`` tells what holds where neither file nor flags say
    anything.
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name not in _TABLES]
    values = read_config_file(path)
    options = take_options(values)
    fields = {**values.pop("training", {}), **training}
    require_known(values, names, (), path)
    merged = {**values, **{name: value for name, value in flags.items() if name in names}}
    hints = get_type_hints(kind)
    typed = {name: _typed(name, value, hints[name]) for name, value in merged.items()}
    typed = {**usual(typed), **typed}
    if "methods" in typed:
        typed["methods"] = tuple(map(registry.canonical, typed["methods"]))
    fields = {**typed.pop("training", {}), **fields}
    loose = {name: value for name, value in flags.items() if name not in names}
    _require_options(loose, typed.get("task"))
    for method, given in options_for(typed.get("methods", kind.methods), loose).items():
        options[method] = {**options.get(method, {}), **given}
    return {**typed, "options": options, "training": fields}


def _require_options(loose: Iterable[str], task: str | None) -> None:
    """What is no setting must be an option of a method: it may be a setting of tasks of another
    kind.
    """
    for name in loose:
        if not any(options_named(method, name) for method in registry):
            raise SettingsError(
                f"'{name}' is neither a setting of the task {task} nor an option of a method; "
                "leave it out"
            )


def options_for(methods: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each option to those of the methods that have it; one that none has is an error."""
    for option in given:
        if not any(options_named(method, option) for method in methods):
            known = sorted({own.name for method in methods for own in describe(method)})
            raise SettingsError(
                f"none of the methods {', '.join(methods)} has the option "
                f"'{option}'{suggest(option, known)}"
            )
    return {
        method: {
            name: value for option, value in given.items() for name in options_named(method, option)
        }
        for method in methods
    }


def take_options(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of methods, taken out of a config file's values.

    In the table of a sum, ``temporal.weight = 10`` is a table in a table.
    """
    found = {name: values.pop(name) for name in list(values) if name in registry}
    return {registry.canonical(method): dict(_flat(table)) for method, table in found.items()}


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", own) for inner, own in value.items())
        else:
            yield name, value


def _typed(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_typed(name, item, get_args(hint)[0]) for item in items)
    found = coerce(name, value, hint)
    if hint in (str, str | None) and found is not None and not (isinstance(found, str) and found):
        raise SettingsError(
            f"{name} must be a text, not empty, got {value!r}; correct it or leave it out"
        )
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a config file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"config file '{path}' does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"config file '{path}' cannot be read: {error}") from None


def read_config_file(path: Path | None, *tables: str) -> dict[str, Any]:
    """The values of a config file; of no file, none. What must be a table is one, and nothing in it
    vouches for code.

    Args:
        path: the TOML file.
        tables: names that are tables, beside ``training`` and those of the methods.
    """
    values = read_toml(path) if path is not None else {}
    methods = (name for name in values if name in registry)
    for name in (*methods, "training", *tables):
        if not isinstance(values.get(name, {}), dict):
            raise SettingsError(
                f"config file '{path}': {name} must be a table, [{name}], got {values[name]!r}"
            )
    if "trust_remote_code" in values:
        raise SettingsError(
            f"config file '{path}': trust_remote_code must be given as a flag; a file cannot vouch "
            "for code"
        )
    return values


def require_known(
    values: Mapping[str, Any], known: Sequence[str], tables: Sequence[str], path: Path | None
) -> None:
    """Refuse keys of a config file that nobody would read."""
    for name in values:
        if name not in known:
            raise SettingsError(
                f"config file '{path}' has the unknown key "
                f"'{name}'{suggest(name, [*known, *tables, *registry])}; it "
                f"may have {', '.join(known)}, and a table for each of "
                f"{', '.join([*tables, 'training', *registry])}"
            )
