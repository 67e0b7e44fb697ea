"""What ``advreg compare`` is asked to do, from flags and a TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from advreg.core.checks import check_whole
from advreg.core.options import Given, Options, option
from advreg.lab.runs.bases import AnySettings, Asked, read, shown, varied
from advreg.lab.runs.plans import writable
from advreg.lab.runs.settings import Settings, SettingsError
from advreg.lab.search.grids import Grid, Point, default_grid, read_grid

SEARCH_SEED = 0


@dataclass(frozen=True)
class CompareSettings(Settings):
    """Everything that decides what ``advreg compare`` computes.

    Args:
        bases: by task, what its runs share; methods and seeds are the same for all.
        grid: what is tuned.
    """

    bases: Mapping[str, AnySettings]
    grid: Grid
    budget: int = option(
        4,
        "candidates per method and task; below 2 nothing is tuned",
        check=partial(check_whole, least=0),
    )
    reference: str = option("", "method that the others are compared with; arch, or the last one")
    keep_models: bool = option(False, "leave models and checkpoints of all runs")

    def __post_init__(self) -> None:
        if not self.reference:
            object.__setattr__(
                self, "reference", "arch" if "arch" in self.methods else self.methods[-1]
            )
        super().__post_init__()
        if self.reference not in self.methods:
            raise SettingsError(
                f"reference must be one of {', '.join(self.methods)}, got '{self.reference}'"
            )
        for task in self.tasks:
            for method in self.methods:
                for point in self.candidates(method):
                    self.settings_for(task, method, point)  # making them checks them

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

    def candidates(self, method: str) -> list[Point]:
        """What is tried of a method; nothing without tuning."""
        return self.grid.candidates(method, self.budget, SEARCH_SEED) if self.budget > 1 else []

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

    The file may hold any settings of ``advreg train``, ``budget``, ``reference``, ``keep_models``
    and a table ``[grid]`` of values to tune over, with ``[grid.arch]`` and so on for options of
    methods. Without this table the grid is what suits the preset.

    Args:
        path: the TOML file.
        flags: settings and options of methods.
        training: fields of TrainingArguments.
        own: ``budget``, ``reference``, ``keep_models``; ``None`` is not given.
    """
    asked = read(path, {**flags, **own}, training, CompareSettings, ["grid"])
    bases = asked.bases(seeds=3)
    return CompareSettings(bases, _grid(next(iter(bases.values())), asked), **asked.own)


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
        [name for name in grid.common if asked.settings.get(name) is not None], base.options
    )
    return Grid(grid.common, {name: own for name, own in grid.methods.items() if own})


def _tuned_and_set(grid: Grid, asked: Asked) -> Iterator[str]:
    yield from (name for name in grid.common if name in asked.fixed)
    for method, own in grid.methods.items():
        yield from (f"{method}.{name}" for name in own if name in asked.options.get(method, {}))


def choose_folder(settings: CompareSettings) -> Path:
    """The folder that was named, or one that the same command finds again."""
    base, titles = settings.any_base, [each.title for each in settings.bases.values()]
    return writable(Path(base.output or f"runs/compare-{'-'.join(titles)}-{Path(base.model).name}"))
