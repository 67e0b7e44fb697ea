"""What ``advreg compare`` is asked to do, from flags and a TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.lab.runs.bases import (
    AnySettings,
    ConfigFile,
    read_bases,
    read_config,
    read_seeds,
    shown,
    split,
    varied,
)
from advreg.lab.runs.plans import writable
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.search.budget import Budget
from advreg.lab.search.grids import Grid, Point, default_grid, read_grid

SEARCH_SEED = 0
DEFAULT_SEEDS, DEFAULT_MOST_SEEDS = 3, 20
_OWN_KINDS: dict[str, type] = {
    "candidates": int,
    "budget": str,
    "max_seeds": int,
    "alpha": float,
    "controls": bool,
    "reference": str,
    "keep_models": bool,
}


@dataclass(frozen=True)
class CompareSettings:
    """Everything that decides what ``advreg compare`` computes.

    Args:
        bases: by task, what its runs share; methods and seeds are the same for all.
        grid: what is tuned.
        candidates: tried per method and task; below 2 nothing is tuned.
        max_seeds: seeds are added until every verdict is reached, up to this number; 0: the seeds
            that are given and no others.
        budget: where it ends no seeds are added; none: unlimited.
        alpha: error rate of all verdicts together.
        controls: also train Standard as long as the method that leads the tuning, and with averaged
            weights.
        reference: the method that the others are compared with; standard, or the first one.
        keep_models: leave models and checkpoints of all runs.
    """

    bases: Mapping[str, AnySettings]
    grid: Grid
    candidates: int = 8
    max_seeds: int = 0
    budget: Budget | None = None
    alpha: float = 0.05
    controls: bool = True
    reference: str = ""
    keep_models: bool = False

    def __post_init__(self) -> None:
        if self.candidates < 0:
            raise SettingsError(f"candidates must be 0 or more, got {self.candidates}")
        if not 0 < self.alpha < 1:
            raise SettingsError(f"alpha must be between 0 and 1, both excluded, got {self.alpha}")
        if not self.reference:
            standard = "standard" in self.methods
            object.__setattr__(self, "reference", "standard" if standard else self.methods[0])
        if self.reference not in self.methods:
            raise SettingsError(
                f"reference must be one of {', '.join(self.methods)}, got '{self.reference}'"
            )
        for task in self.tasks:
            for method in self.methods:
                for point in self.points(method):
                    self.settings_for(task, method, point)  # checked as they are made

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

    def points(self, method: str) -> list[Point]:
        """The candidates of a method; none without tuning."""
        tuned = self.candidates > 1
        return self.grid.candidates(method, self.candidates, SEARCH_SEED) if tuned else []

    def settings_for(self, task: str, method: str, point: Point) -> AnySettings:
        """The settings of a run: the task's, with a point of the grid in their place."""
        common = {name: value for name, value in point.items() if name in self.grid.common}
        own = {name: value for name, value in point.items() if name not in common}
        return varied(self.bases[task], method, common, own)

    def shown(self, task: str) -> dict[str, Any]:
        """The settings of a task as the record holds them: what is not compared or known by a
        fingerprint.
        """
        return shown(self.bases[task], self.methods)


def read_compare(
    path: Path | None, flags: Mapping[str, Any], training: Mapping[str, Any], **own: Any
) -> CompareSettings:
    """Defaults, then the TOML file, then the flags; a later one wins, and what either of them fixes
    is not tuned.

    The file is that of ``advreg train``. It may also have the fields of :class:`CompareSettings`,
    and a table ``[grid]`` of values to tune over, with ``[grid.arch]`` and so on for options of
    methods. Without one the grid is what suits the preset: for a pretrained model ``fine-tuning``,
    or the paper's, ``understanding``.

    Args:
        path: the TOML file.
        flags: settings and options of methods; ``task``, ``methods`` and ``seeds`` hold several, as
            :func:`split` and :func:`read_seeds` take them.
        training: fields of TrainingArguments.
        own: fields of :class:`CompareSettings`; ``None`` is not given.
    """
    file = read_config(path, _OWN_KINDS, ["grid"])
    values = {**file.settings, **flags}
    values["methods"] = split(values.get("methods") or TrainSettings.methods)
    seeds_given = values.get("seeds") is not None
    values["seeds"] = read_seeds(values["seeds"] if seeds_given else DEFAULT_SEEDS)
    bases = read_bases(file, values, training, usual_preset="grid" not in file.tables)
    given = {**file.own, **{name: value for name, value in own.items() if value is not None}}
    if "budget" in given:
        given["budget"] = Budget.parse(given["budget"])
    if "budget" in given or not seeds_given:
        given.setdefault("max_seeds", DEFAULT_MOST_SEEDS)
    return CompareSettings(bases, _grid(next(iter(bases.values())), file, values), **given)


def _grid(base: AnySettings, file: ConfigFile, values: Mapping[str, Any]) -> Grid:
    """What is left to tune once the fixed settings are taken out."""
    table = file.tables.get("grid")
    grid = default_grid(base.model, base.preset) if table is None else read_grid(table)
    twice = [*_tuned_and_set(grid, file)] if table is not None else []
    if twice:
        raise SettingsError(
            f"config file '{file.path}' both sets and tunes {', '.join(twice)}; remove one of the "
            "two"
        )
    for name in grid.common:
        if not hasattr(base, name):
            raise SettingsError(
                f"grid.{name} must be a setting of the task, but {base.task} has none of that name"
            )
    grid = Grid(grid.common, {name: grid.own(name) for name in base.methods}).without(
        [name for name in grid.common if values.get(name) is not None], base.options
    )
    return Grid(grid.common, {name: own for name, own in grid.methods.items() if own})


def _tuned_and_set(grid: Grid, file: ConfigFile) -> Iterator[str]:
    yield from (name for name in grid.common if name in file.settings)
    for method, own in grid.methods.items():
        yield from (f"{method}.{name}" for name in own if name in file.options.get(method, {}))


def choose_folder(settings: CompareSettings) -> Path:
    """The folder that was named, or one that the same command finds again."""
    base = settings.any_base
    named = (
        f"runs/compare-{'-'.join(settings.tasks)}-{Path(base.model).name}"
        if base.output is None
        else base.output
    )
    return writable(Path(named))
