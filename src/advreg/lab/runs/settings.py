"""Settings of a run: shared settings, and settings of classification and regression.

Each setting is declared once, as a field: its type says which values it takes, its metadata what it
is for. Flags, config files, checks, grids and the plan of a run are derived from these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from advreg.core.checks import (
    Check,
    check_count,
    check_decay,
    check_not_negative,
    check_positive,
    check_share,
    suggest,
)
from advreg.core.options import Checked, Given, Options, Preset, option, options_of
from advreg.lab.kinds import SCRATCH
from advreg.lab.kinds.classification.description import DOCSTRINGS as DOCSTRINGS
from advreg.lab.kinds.classification.description import FILES as FILES
from advreg.lab.kinds.classification.tables import LabelKind, check_columns
from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.runs.training_presets import training_preset

if TYPE_CHECKING:
    from advreg.methods import Method

Precision = Literal["fp32", "bf16", "fp16"]
OnNonFinite = Literal["stop", "skip"]
Role = Literal["result", "compute", "recipe", "data", "files", "run"]
"""What a setting decides: ``result``, the outcome, so that a resumed run must agree on it;
``compute``, how a run is computed; ``recipe``, the defaults of others; ``data`` and ``files`` (of
the user's own), the samples, which are known by their fingerprint; ``run``, which runs are made and
where they are kept."""

# The built-in task with the small model; chosen from the runs in results/default_task.jsonl.
_DEFAULT_TASK_OPTIONS: dict[str, Options] = {
    "arch": {"radius": 0.3, "step_size": 0.3, "refresh_every": 3},
    "smart": {"radius": 0.3, "step_size": 0.3},
}
_DEFAULT_TASK_LENGTH = 32
# Fields of TrainingArguments that say how a run is computed, logged or kept, not what it learns.
_COMPUTED = (
    *("torch_compile*", "logging_*", "log_level*", "log_on_each_node", "report_to", "run_name"),
    *("disable_tqdm", "dataloader_num_workers", "dataloader_pin_memory", "save_total_limit"),
    *("settings", "short_attention"),  # all settings, in plans; in older ones, a removed kernel
)


_FLAGS = {"methods": "--method", "label_kind": "--kind"}  # where it is not the name


class SettingsError(ValueError):
    """A setting cannot be used."""


class Settings(Checked):
    """A dataclass of settings that checks their values."""

    def __post_init__(self) -> None:
        with settings_errors():
            super().__post_init__()


@contextmanager
def settings_errors() -> Iterator[None]:
    """Raise a :class:`SettingsError` for a bad value within this context."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(str(error)) from None


def names_of(kind: type[Any], *roles: Role) -> list[str]:
    """The settings of a kind that have one of these roles."""
    return [each.name for each in options_of(kind) if each.about.get("role") in roles]


def flag_name(name: str) -> str:
    """The flag of a setting or option.

    Example:
        >>> flag_name("learning_rate"), flag_name("methods"), flag_name("temporal.weight")
        ('--learning-rate', '--method', '--temporal.weight')
    """
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def stem_of(path: str) -> str:
    """The name of a file without its suffixes.

    Example:
        >>> stem_of("data/reviews.csv.gz"), stem_of("corpus/")
        ('reviews', 'corpus')
    """
    return Path(path.removesuffix(".gz").removesuffix(".xz")).stem


def unknown_task(task: str, known: Sequence[str]) -> SettingsError:
    """The error for a task that does not exist."""
    return SettingsError(
        f"task must be one of {', '.join(known)}, got '{task}'{suggest(task, known)}"
    )


def decisive(settings: Given) -> Options:
    """The settings that decide what a run learns, without settings of computing and logging,
    which may change when a run is resumed.

    Example:
        >>> training = {"torch_compile": True, "logging_steps": 5, "max_steps": 9}
        >>> decisive({"epochs": 3, "compile_layers": True, "training": training})
        {'epochs': 3, 'training': {'max_steps': 9}}
    """
    free = (*names_of(RunSettings, "compute"), *_COMPUTED)
    return {
        name: decisive(value) if name == "training" else value
        for name, value in settings.items()
        if not any(fnmatch(name, pattern) for pattern in free)
    }


def setting(
    default: Any,
    help: str,
    role: Role = "result",
    *,
    main: int | None = None,
    tunes: bool = False,
    varies: bool = False,
    sets: tuple[str, ...] = (),
    fills: str | None = None,
    check: Check | None = None,
) -> Any:
    """A setting.

    Args:
        default: where nothing is given.
        help: for ``--help``.
        role: what it decides.
        main: place in the short list of flags that ``--help`` starts with.
        tunes: ``advreg compare`` may tune it.
        varies: ``advreg study`` may vary it, though it is not tuned.
        sets: the fields of TrainingArguments that it determines.
        fills: the field that it determines unless it is ``None``.
        check: refuses bad values of its type.
    """
    shown = {"role": role, "main": main, "tunes": tunes, "varies": varies}
    return option(default, help, check=check, sets=sets, fills=fills, **shown)


def check_seeds(name: str, seeds: Sequence[int]) -> None:
    """Seeds that numpy takes."""
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise ValueError(f"{name} must be at least 0 and below {2**32}, got {seed}")


@dataclass(frozen=True)
class RunSettings(Settings, ABC):
    """The settings of a run of any kind of task."""

    tasks: ClassVar[tuple[str, ...]]
    """Names of the tasks of this kind."""
    kind: ClassVar[str]
    """Its folder in :mod:`advreg.lab.kinds`."""
    own_files: ClassVar[str]
    """The task whose samples are the user's files."""
    named_after: ClassVar[tuple[str, ...]]
    """The files that give the data their name; the first that is given."""
    common_grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """What ``advreg compare`` tunes with every method; empty: what suits the model."""

    task: str = setting("", "name of the task", "data", main=3)
    data: str | None = setting(None, "folder of the data", "data")
    model: str = setting(SCRATCH, "model to train", main=4)
    methods: tuple[str, ...] = setting(
        ("standard", "arch"), "methods to train with: a,b", "run", main=5
    )
    preset: Preset | None = setting(
        None,
        "options of the methods and of the training that suit a family of tasks; options that are "
        "given win; pretrained models have fine-tuning unless it is none",
        "recipe",
    )
    seeds: tuple[int, ...] = setting(
        (0, 1),
        "number of seeds, or a list: 0,5,7",
        "run",
        main=6,
        sets=("seed",),
        check=check_seeds,
    )
    epochs: int = setting(
        12,
        "passes over the training data",
        main=7,
        tunes=True,
        sets=("num_train_epochs",),
        check=check_count,
    )
    learning_rate: float | None = setting(
        None,
        "peak learning rate",
        main=8,
        tunes=True,
        sets=("learning_rate",),
        check=check_positive,
    )
    precision: Precision = setting(
        "fp32", "floating-point precision of the training", sets=("bf16", "fp16")
    )
    round_lengths: int = setting(
        1, "round the widths of batches up to a multiple of this", check=check_count
    )
    compile_layers: bool | None = setting(
        None, "torch.compile for the layers; layers of one kind share the code", "compute"
    )
    site: str = setting(
        "tokens",
        "place of the perturbation: tokens, block, or a module's dotted name",
        varies=True,
    )
    on_non_finite: OnNonFinite = setting(
        "stop", "on a non-finite loss or gradient: stop, or skip that update"
    )
    weight_ema: float | None = setting(
        None,
        "decay of a moving average of the weights, which is evaluated and saved instead of them",
        tunes=True,
        check=check_decay,
    )
    output: str | None = setting(
        None,
        "folder of the runs; by default runs/DATA-MODEL",
        "run",
        main=9,
        sets=("output_dir",),
    )
    options: Mapping[str, Given] = option({}, "options of each method, by its name", role="run")
    training: Given = option({}, "fields of transformers.TrainingArguments", role="result")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in self.tasks:
            raise unknown_task(self.task, self.tasks)
        self._check_data()
        self._check_training()
        self._check_methods()

    @classmethod
    def usual(cls, given: Given) -> Given:
        """Defaults for the task and the model."""
        return {}

    @classmethod
    def foreign(cls, task: str) -> frozenset[str]:
        """Settings that name data of other tasks of this kind."""
        return frozenset() if task == cls.own_files else frozenset(names_of(cls, "files"))

    @classmethod
    def claims(cls, given: Given) -> bool:
        """Whether the files that are given are of this kind; asked where no task is named."""
        return bool(given.keys() & {*names_of(cls, "files")})

    @classmethod
    def inspect(cls, given: Given) -> None:
        """Refuse unusable data early, before the settings import torch to check the methods."""

    def method(self, name: str) -> Method:
        """A new instance of one of the methods: the defaults, then the given options."""
        from advreg.methods import create

        usual = self._usual_options(name)
        usual = {**usual, **self._refreshes_in_time(name, usual)}
        return create(name, **{**usual, **self.options.get(name, {})})

    def facts(self) -> Options:
        """The settings that a resumed run must share, except data, method and seed."""
        names = (*names_of(type(self), "result"), *names_of(type(self), "compute"))
        return {**{name: getattr(self, name) for name in names}, **self._effective()}

    def saved(self) -> Options:
        """All settings, for a plan from which the run can be resumed; a resumed run must
        allow the code of a model again.
        """
        values = {each.name: getattr(self, each.name) for each in options_of(type(self))}
        return {name: value for name, value in values.items() if name != "trust_remote_code"}

    @property
    def title(self) -> str:
        """The name of the data."""
        files = self.named_after if self.task == self.own_files else ()
        given = (getattr(self, name) for name in files)
        return stem_of(next(filter(None, given), self.task))

    def averaging(self) -> Options:
        """What a record says of averaged weights."""
        return {} if self.weight_ema is None else {"weight_ema": self.weight_ema}

    def filled(self) -> Options:
        """The fields of TrainingArguments that settings with a value determine."""
        fills = {each.name: each.about.get("fills") for each in options_of(type(self))}
        return {
            field: getattr(self, name)
            for name, field in fills.items()
            if field and getattr(self, name) is not None
        }

    def require(self, samples: int) -> None:
        """Refuse methods that do not allow this number of training samples, or this machine."""
        from advreg.methods.base import validate

        for name in self.methods:
            validate(self.method(name), samples)

    def _usual_options(self, name: str) -> Given:
        """Default options of a method."""
        from advreg.methods import preset

        return {} if self.preset is None else preset(self.preset, name)

    def _refreshes_in_time(self, name: str, usual: Given) -> Given:
        """Where the usual T_c is not reached in the epochs, a third of them."""
        from advreg.methods.base import describe

        found = {}
        for each in describe(name):
            every = usual.get(each.name, each.default)
            is_every = each.name.rpartition(".")[2] == "refresh_every"
            if is_every and every is not None and every >= self.epochs > 1:
                found[each.name] = -(-self.epochs // 3)
        return found

    def _effective(self) -> Given:
        """Effective values of settings that follow from others."""
        return {}

    @abstractmethod
    def _check_data(self) -> None: ...

    def _check_training(self) -> None:
        """Refuse training fields that are advreg settings, which the record would contradict."""
        for own in options_of(type(self)):
            fills = {own.about.get("fills")} if getattr(self, own.name) is not None else set()
            for name in ({*own.about.get("sets", ())} | fills) & self.training.keys():
                raise SettingsError(
                    f"training field '{name}' is a setting of advreg; use "
                    f"{flag_name(own.name)} instead"
                )
        for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode"):
            if self.compile_layers and self.training.get(name):
                raise SettingsError(
                    f"compile_layers must be off with {name}={self.training[name]}, which compiles "
                    "the model as a whole; leave one of them out"
                )

    def _check_methods(self) -> None:
        """Refuse repeated methods and seeds, unknown methods and bad options."""
        from advreg.methods import registry

        methods = tuple(map(registry.canonical, self.methods))
        options = {registry.canonical(name): own for name, own in self.options.items()}
        vars(self).update(methods=methods, options=options)
        _require_different("methods must be different ones", methods)
        _require_different("seeds must be different numbers", self.seeds)
        for name in (*methods, *options):
            if name not in registry:
                raise SettingsError(
                    registry.unknown(name)
                    if name in methods
                    else f"options are given for the method '{name}'{suggest(name, registry)}, "
                    "which is unknown"
                )
            self.method(name)


def _require_different(rule: str, values: Sequence[Any]) -> None:
    if not values or len(set(values)) != len(values):
        raise SettingsError(f"{rule}, at least one, got {list(values)}")


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """Settings of a run of text classification or regression."""

    tasks: ClassVar[tuple[str, ...]] = (DOCSTRINGS, FILES, *TASKS)
    kind: ClassVar[str] = "classification"
    own_files: ClassVar[str] = FILES
    named_after: ClassVar[tuple[str, ...]] = ("train",)

    task: str = setting(
        DOCSTRINGS,
        f"docstrings (the built-in task), files (with --train), or one of {', '.join(TASKS)}",
        "data",
        main=3,
    )
    data: str | None = setting(
        None,
        "folder with TASK/SPLIT.jsonl.gz of the named tasks; without it ADVREG_DATA, else the "
        "Hugging Face hub",
        "data",
    )
    train: str | None = setting(
        None, "training samples: a csv, tsv, jsonl or parquet file", "files", main=1
    )
    dev: str | None = setting(
        None,
        "samples to evaluate on; without it a tenth of each class of the training file is held out",
        "files",
        main=2,
    )
    text_column: str | None = setting(None, "column of the text; by default guessed", "files")
    pair_column: str | None = setting(
        None, "column of the second text of a pair; by default guessed", "files"
    )
    label_column: str | None = setting(None, "column of the label; by default guessed", "files")
    label_kind: LabelKind | None = setting(
        None, "whether labels are classes or scores; by default the labels decide", "files"
    )
    drop_empty: bool = setting(
        False, "leave out rows without a text or a label, instead of refusing them", "files"
    )
    model: str = setting(
        SCRATCH,
        "small (two layers, from scratch), minilm, mpnet, a folder, or a name on the hub",
        main=4,
    )
    batch_size: int = setting(
        32,
        "samples per step, in each process",
        tunes=True,
        sets=("per_device_train_batch_size",),
        check=check_count,
    )
    learning_rate: float | None = setting(
        None,
        "peak learning rate; 1e-3 for small, 5e-5 for other models",
        main=8,
        tunes=True,
        sets=("learning_rate",),
        check=check_positive,
    )
    warmup: float = setting(
        0.1, "share of the steps in which the learning rate rises", tunes=True, check=check_share
    )
    max_length: int | None = setting(
        None,
        "cut texts to this number of tokens; 128 or what the model takes (small: 64, built-in "
        "task: 32)",
        check=check_count,
    )
    encoder_dropout: float | None = setting(
        None,
        "dropout of the encoder, instead of the model's own",
        tunes=True,
        check=check_share,
    )
    head_dropout: float | None = setting(
        None,
        "dropout of the classification head, instead of the model's own",
        tunes=True,
        check=check_share,
    )
    label_smoothing: float | None = setting(
        None,
        "of the training loss; not for regression",
        tunes=True,
        fills="label_smoothing_factor",
        check=check_share,
    )
    weight_decay: float | None = setting(
        None,
        "of the weights except biases and norms; 0 if not given",
        tunes=True,
        fills="weight_decay",
        check=check_not_negative,
    )
    trust_remote_code: bool = setting(
        False, "run code that comes with the model; only as a flag, not in a config file"
    )

    @classmethod
    def usual(cls, given: Given) -> Given:
        """The training settings of the preset; pretrained models have fine-tuning."""
        pretrained = given.get("model", SCRATCH) != SCRATCH
        chosen = given.get("preset", "fine-tuning" if pretrained else None)
        found = {} if chosen in (None, "none") else training_preset(chosen, given["task"])
        return {"preset": chosen, **found}

    @classmethod
    def foreign(cls, task: str) -> frozenset[str]:
        return super().foreign(task) | (frozenset() if task in TASKS else {"data"})

    @classmethod
    def inspect(cls, given: Given) -> None:
        columns = [given.get(f"{name}_column") for name in ("text", "pair", "label")]
        if given.get("train"):
            check_columns(Path(given["train"]), *columns)

    @property
    def text_length(self) -> int | None:
        """The number of tokens that texts are cut to; ``None`` leaves it to the model."""
        if self.max_length is None and self._is_built_in:
            return _DEFAULT_TASK_LENGTH
        return self.max_length

    @property
    def peak_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-3 if self.model == SCRATCH else 5e-5

    @property
    def _is_built_in(self) -> bool:
        return (self.task, self.model) == (DOCSTRINGS, SCRATCH)

    def _usual_options(self, name: str) -> Given:
        """Options of the preset, else options that suit the built-in task."""
        from advreg.methods.base import by_part

        if self.preset is not None or not self._is_built_in:
            return super()._usual_options(name)
        return by_part(name, lambda part: _DEFAULT_TASK_OPTIONS.get(part, {}))

    def _effective(self) -> Given:
        return {"learning_rate": self.peak_learning_rate, "max_length": self.text_length}

    def _check_data(self) -> None:
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


SETTINGS = TrainSettings
