"""What ``advreg compare`` is asked to do, from flags and a TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from advreg.core.checks import check_whole
from advreg.core.options import Given, Options, option, options_of
from advreg.lab.runs.bases import AnySettings, Asked, read, shown, varied
from advreg.lab.runs.plans import writable
from advreg.lab.runs.settings import Settings, SettingsError
from advreg.lab.search.budget import Budget
from advreg.lab.search.grids import Grid, Point, default_grid, read_grid

SEARCH_SEED = 0
DEFAULT_SEEDS, DEFAULT_MOST_SEEDS = 3, 20


def _check_budget(name: str, value: str) -> None:
    Budget.parse(value)


def _check_rate(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded, got {value}")


@dataclass(frozen=True)
class CompareSettings(Settings):
    """Everything that decides what ``advreg compare`` computes.

    Args:
        bases: by task, what its runs share; methods and seeds are the same for all.
        grid: what is tuned.
    """

    bases: Mapping[str, AnySettings]
    grid: Grid
    candidates: int = option(
        8,
        "settings tried per method and task; below 2 nothing is tuned",
        check=partial(check_whole, least=0),
    )
    budget: str | None = option(
        None,
        "add seeds until all is decided or this is spent: a time (2h) or a number of runs (40)",
        check=_check_budget,
    )
    max_seeds: int = option(
        0,
        "seeds are added up to this number; 0: no seeds but the given ones",
        check=partial(check_whole, least=0),
    )
    alpha: float = option(0.05, "error rate of all verdicts together", check=_check_rate)
    controls: bool = option(True, "also train Standard longer and with averaged weights")
    reference: str = option(
        "", "method that the others are compared with; standard, or the first one"
    )
    keep_models: bool = option(False, "leave models and checkpoints of all runs")

    def __post_init__(self) -> None:
        if not self.reference:
            standard = "standard" in self.methods
            object.__setattr__(self, "reference", "standard" if standard else self.methods[0])
        super().__post_init__()
        if self.reference not in self.methods:
            raise SettingsError(
                f"reference must be one of {', '.join(self.methods)}, got '{self.reference}'"
            )
        for method in self.methods:
            self._require_points(method)
        for task in self.tasks:
            for method in self.methods:
                for point in self.points(method):
                    self.settings_for(task, method, point)  # making them checks them

    def _require_points(self, method: str) -> None:
        """Every method has the same number of candidates, so the smallest grid must have enough."""
        size = self.grid.size(method)
        if self.candidates > 1 and size < self.candidates:
            remedy = f"or give --candidates {size}" if size > 1 else "or give --candidates 0"
            raise SettingsError(
                f"candidates must be at most the {size} points of the grid of {method}, got "
                f"{self.candidates}; add values to [grid], tune more settings, {remedy}"
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bases)

    @property
    def any_base(self) -> AnySettings:
        return next(iter(self.bases.values()))

    @property
    def methods(self) -> tuple[str, ...]:
        return self.any_base.methods

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.any_base.seeds

    @property
    def most_seeds(self) -> int:
        """How many seeds each method may have in the end."""
        return max(self.max_seeds, len(self.seeds))

    @property
    def limit(self) -> Budget | None:
        """The budget; none: unlimited."""
        return None if self.budget is None else Budget.parse(self.budget)

    def points(self, method: str) -> list[Point]:
        """The candidates of a method; none without tuning."""
        tuned = self.candidates > 1
        return self.grid.candidates(method, self.candidates, SEARCH_SEED) if tuned else []

    def settings_for(self, task: str, method: str, point: Point) -> AnySettings:
        """The settings of a run: the task's, with a point of the grid in their place."""
        common = {name: value for name, value in point.items() if name in self.grid.common}
        own = {name: value for name, value in point.items() if name not in common}
        return varied(self.bases[task], method, common, own)

    def shown(self, task: str) -> Options:
        """The settings of a task as the record holds them: what is not compared or known by a
        fingerprint.
        """
        return shown(self.bases[task], self.methods)


def read_compare(path: Path | None, flags: Given, training: Given, **own: Any) -> CompareSettings:
    """What is usual, then the TOML file, then the flags; a later one wins, and what file or flags
    fix is not tuned.

    The file may hold any settings of ``advreg train``, the fields of :class:`CompareSettings`, and
    a table ``[grid]`` of values to tune over, with ``[grid.arch]`` and so on for options of
    methods. Without this table the grid is what suits the preset.

    Args:
        path: the TOML file.
        flags: settings and options of methods.
        training: fields of TrainingArguments.
        own: fields of :class:`CompareSettings`; ``None`` is not given.
    """
    given = {name: value for name, value in own.items() if value is not None}
    asked = read(path, {**flags, **given}, training, CompareSettings, ["grid"])
    bases = asked.bases(seeds=DEFAULT_SEEDS)
    adds_seeds = "budget" in asked.own or asked.settings.get("seeds") is None
    usual = {"max_seeds": DEFAULT_MOST_SEEDS} if adds_seeds else {}
    base = next(iter(bases.values()))
    grid = _grid(base, asked)
    fewest = min(map(grid.size, base.methods))
    if fewest < CompareSettings.candidates:  # because settings are fixed, or the grid is small
        usual["candidates"] = fewest if fewest > 1 else 0
    return CompareSettings(bases, grid, **{**usual, **asked.own})


def _grid(base: AnySettings, asked: Asked) -> Grid:
    """What is left to tune once the fixed settings are taken out."""
    table = asked.tables.get("grid")
    usual = default_grid(base.model, base.preset, base.common_grid)
    grid = usual if table is None else read_grid(table)
    if table is not None and (twice := [*_tuned_and_set(grid, asked)]):
        raise SettingsError(
            f"config file '{asked.path}' both sets and tunes {', '.join(twice)}; remove one of the "
            "two"
        )
    for name in grid.common:
        if not hasattr(base, name):
            raise SettingsError(
                f"grid.{name} must be a setting of the task, but {base.task} has none of that name"
            )
    grid = Grid(grid.common, {name: grid.own(name) for name in base.methods}).without(
        [name for name in grid.common if _is_fixed(name, base, asked)], base.options
    )
    return Grid(grid.common, {name: own for name, own in grid.methods.items() if own})


def _is_fixed(name: str, base: AnySettings, asked: Asked) -> bool:
    """Whether a setting was given, as itself or as the field of TrainingArguments that it fills."""
    fills = {each.name: each.about.get("fills") for each in options_of(type(base))}
    return asked.settings.get(name) is not None or fills[name] in base.training


def _tuned_and_set(grid: Grid, asked: Asked) -> Iterator[str]:
    yield from (name for name in grid.common if name in asked.fixed)
    for method, own in grid.methods.items():
        yield from (f"{method}.{name}" for name in own if name in asked.options.get(method, {}))


def choose_folder(settings: CompareSettings) -> Path:
    """The folder that was named, or one that the same command finds again."""
    base, titles = settings.any_base, [each.title for each in settings.bases.values()]
    return writable(Path(base.output or f"runs/compare-{'-'.join(titles)}-{Path(base.model).name}"))
