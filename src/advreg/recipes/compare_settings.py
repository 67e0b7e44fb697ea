"""What ``advreg compare`` is asked to do, from flags and a TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.hf.models import SCRATCH
from advreg.methods import registry
from advreg.methods.base import suggest
from advreg.recipes.grids import Grid, Point, default_grid, read_grid
from advreg.recipes.settings import DOCSTRINGS, FILES, SettingsError, TrainSettings, read_settings, read_toml
from advreg.recipes.understanding import TASKS

SEARCH_SEED = 0
_OF_FILES = ("train", "dev", "text_column", "pair_column", "label_column")
_NOT_SHOWN = ("task", "methods", "seeds", "output", "data", "train", "dev")
_OWN_KINDS: dict[str, type] = {"budget": int, "reference": str, "keep_models": bool}


@dataclass(frozen=True)
class CompareSettings:
    """Everything that decides what ``advreg compare`` computes.

    Args:
        bases: by task, what its runs share; methods and seeds are the same for all.
        grid: what is tuned.
        budget: candidates per method and task; below 2 nothing is tuned.
        reference: the method that the others are compared with; arch, or the last one.
        keep_models: leave models and checkpoints.
    """

    bases: Mapping[str, TrainSettings]
    grid: Grid
    budget: int = 4
    reference: str = ""
    keep_models: bool = False

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise SettingsError(f"budget must be 0 or more, got {self.budget}")
        if not self.reference:
            object.__setattr__(self, "reference", "arch" if "arch" in self.methods else self.methods[-1])
        if self.reference not in self.methods:
            raise SettingsError(f"reference must be one of {', '.join(self.methods)}, got '{self.reference}'")
        for task in self.tasks:
            for method in self.methods:
                for point in self.candidates(method):
                    self.settings_for(task, method, point)  # checked as they are made

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bases)

    @property
    def any_base(self) -> TrainSettings:
        return next(iter(self.bases.values()))

    @property
    def methods(self) -> tuple[str, ...]:
        return self.any_base.methods

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.any_base.seeds

    def candidates(self, method: str) -> list[Point]:
        """What is tried of a method; without tuning nothing: the settings are used as they are."""
        return self.grid.candidates(method, self.budget, SEARCH_SEED) if self.budget > 1 else []

    def settings_for(self, task: str, method: str, point: Point) -> TrainSettings:
        """The settings of a run: the task's, with a point of the grid in their place."""
        base = self.bases[task]
        common = {name: value for name, value in point.items() if name in self.grid.common}
        own = {name: value for name, value in point.items() if name not in common}
        options = {method: {**base.options.get(method, {}), **own}}
        return replace(base, **common, methods=(method,), options=options, output=None)

    def shown(self, task: str) -> dict[str, Any]:
        """The settings of a task as the record holds them: what is not compared, tuned or known by a fingerprint."""
        base = self.bases[task]
        values = {each.name: getattr(base, each.name) for each in dataclasses.fields(TrainSettings)}
        options = {method: base.method(method).options() for method in self.methods}
        return {name: value for name, value in values.items() if name not in _NOT_SHOWN} | {"options": options}


def read_compare(
    path: Path | None, flags: Mapping[str, Any], training: Mapping[str, Any], **own: Any
) -> CompareSettings:
    """Defaults, then the TOML file, then the flags; a later one wins, and what either of them fixes is not tuned.

    The file is that of ``advreg train``, and may have ``budget``, ``reference`` and ``keep_models`` too, and a table
    ``[grid]`` of values to tune over, with ``[grid.arch]`` and so on for options of methods. Without one the grid is
    the paper's, and so are the settings it does not tune (``preset = "understanding"``).

    Args:
        path: the TOML file.
        flags: settings and options of methods; ``task``, ``methods`` and ``seeds`` hold several, as :func:`split` and
            :func:`read_seeds` take them.
        training: fields of TrainingArguments.
        own: ``budget``, ``reference``, ``keep_models``; ``None`` is not given.
    """
    file = _read_file(path)
    values = {**file.settings, **flags}
    tasks = split(values.pop("task", None) or (FILES if values.get("train") else DOCSTRINGS))
    if not tasks or len(set(tasks)) != len(tasks):
        raise SettingsError(f"task must be different names, at least one, got {tasks}")
    values["methods"] = split(values.get("methods") or TrainSettings.methods)
    values["seeds"] = read_seeds(values.get("seeds", 3))
    if file.grid is None and values.get("model", SCRATCH) != SCRATCH:
        values.setdefault("preset", "understanding")  # what the paper's grid is about
    fields = {**file.training, **training}
    bases = {task: _base(task, values, fields, file.options) for task in tasks}
    given = {**file.own, **{name: value for name, value in own.items() if value is not None}}
    return CompareSettings(bases, _grid(bases[tasks[0]], file, values), **given)


def _base(
    task: str, values: Mapping[str, Any], training: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]
) -> TrainSettings:
    """The settings of one task; those of data that are not its own are left out."""
    foreign = (*(() if task == FILES else _OF_FILES), *(() if task in TASKS else ("data",)))
    mine = {name: value for name, value in values.items() if name not in foreign}
    base = read_settings(None, {**mine, "task": task}, training)
    merged = {name: {**options.get(name, {}), **base.options.get(name, {})} for name in registry}
    return replace(base, options={name: given for name, given in merged.items() if given})


def _grid(base: TrainSettings, file: _File, values: Mapping[str, Any]) -> Grid:
    """What is left to tune once the fixed settings are taken out."""
    grid = default_grid(base.model) if file.grid is None else read_grid(file.grid)
    twice = [*_tuned_and_set(grid, file)] if file.grid is not None else []
    if twice:
        raise SettingsError(f"config file '{file.path}' both sets and tunes {', '.join(twice)}; remove one of the two")
    grid = grid.without([name for name in grid.common if values.get(name) is not None], base.options)
    return Grid(grid.common, {name: own for name, own in grid.methods.items() if name in base.methods and own})


def _tuned_and_set(grid: Grid, file: _File) -> Iterator[str]:
    yield from (name for name in grid.common if name in file.settings)
    for method, own in grid.methods.items():
        yield from (f"{method}.{name}" for name in own if name in file.options.get(method, {}))


@dataclass(frozen=True)
class _File:
    """A config file, sorted."""

    path: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] | None = None


def _read_file(path: Path | None) -> _File:
    if path is None:
        return _File()
    values = read_toml(path)
    for name in (*registry, "training", "grid"):
        if not isinstance(values.get(name, {}), dict):
            raise SettingsError(f"config file '{path}': {name} must be a table, [{name}], got {values[name]!r}")
    options = {name: values.pop(name) for name in registry if name in values}
    training, grid = values.pop("training", {}), values.pop("grid", None)
    own = {name: values.pop(name) for name in _OWN_KINDS if name in values}
    for name, value in own.items():
        if type(value) is not _OWN_KINDS[name]:
            raise SettingsError(
                f"config file '{path}': {name} must be of type {_OWN_KINDS[name].__name__}, got {value!r}"
            )
    _require_known(values, path)
    return _File(path, values, options, training, own, grid)


def _require_known(values: Mapping[str, Any], path: Path) -> None:
    names = [each.name for each in dataclasses.fields(TrainSettings) if each.name not in ("options", "training")]
    known = [*names, *_OWN_KINDS]
    for name in values:
        if name not in known:
            raise SettingsError(
                f"config file '{path}' has the unknown key '{name}'{suggest(name, [*known, 'grid', *registry])}; it "
                f"may have {', '.join(known)}, and a table for each of grid, training, {', '.join(registry)}"
            )


def split(names: str | Sequence[str]) -> list[str]:
    """Names from ``"a,b"`` or a list of such.

    Example:
        >>> split("rte, mrpc"), split(["rte,mrpc", "cola"])
        (['rte', 'mrpc'], ['rte', 'mrpc', 'cola'])
    """
    parts = [names] if isinstance(names, str) else names
    return [name.strip() for part in parts for name in str(part).split(",") if name.strip()]


def read_seeds(given: int | str | Sequence[int]) -> list[int]:
    """How many seeds, from 0 on, or which.

    Example:
        >>> read_seeds("3"), read_seeds("5,7"), read_seeds("5,"), read_seeds([1, 2])
        ([0, 1, 2], [5, 7], [5], [1, 2])
    """
    try:
        if isinstance(given, int):
            return list(range(given))
        if isinstance(given, str):
            return [int(part) for part in split(given)] if "," in given else list(range(int(given)))
        return [int(seed) for seed in given]
    except (TypeError, ValueError):
        raise SettingsError(f"seeds must be how many (3) or which (0,5,7), got {given!r}") from None


def choose_folder(settings: CompareSettings) -> Path:
    """The folder that was named, or one that the same command finds again."""
    base = settings.any_base
    if base.output is not None:
        return Path(base.output)
    return Path("runs") / f"compare-{'-'.join(settings.tasks)}-{Path(base.model).name}"
