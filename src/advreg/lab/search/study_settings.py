"""Settings of a study: a method, what is varied of it, and the baselines next to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advreg.core.checks import suggest
from advreg.core.options import Given, Options, option, options_of
from advreg.lab.runs.bases import AnySettings, read, read_toml, split, varied
from advreg.lab.runs.plans import run_facts, writable
from advreg.lab.runs.settings import Settings, SettingsError
from advreg.methods import create, describe, registry

DEFAULT_GRID = Path(__file__).with_name("study.toml")
DEFAULT = "default"
_GRID, _STUDIES, _TITLE, _POINTS, _LABEL = "grid", "studies", "title", "points", "label"


@dataclass(frozen=True)
class PointSpec:
    """One point of a study: what stands below it, and what is set."""

    label: str
    changes: Given


@dataclass(frozen=True)
class StudySpec:
    """One study: a panel of the picture."""

    name: str
    title: str
    points: tuple[PointSpec, ...]


@dataclass(frozen=True)
class Variant:
    """What a run is made with.

    Args:
        name: METHOD/default, or METHOD/ and what differs from that.
        method: its method.
        changes: options and settings that differ from the default's in effect.
        settings: of the run.
    """

    name: str
    method: str
    changes: Given
    settings: AnySettings


@dataclass(frozen=True)
class StudySettings(Settings):
    """Everything that decides what ``advreg study`` computes.

    Args:
        base: what all runs share; its methods are the one that is studied and the baselines.
        studies: what is varied.
    """

    base: AnySettings
    studies: tuple[StudySpec, ...]
    method: str = option("arch", "method to study")
    baselines: tuple[str, ...] = option(
        ("smart", "standard"), "methods drawn as lines: a,b; or none"
    )
    keep_models: bool = option(False, "leave models and checkpoints of all runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        for study in self.studies:
            for point in study.points:
                self.variant(self.method, point.changes)  # making them checks them

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.base.seeds

    def variants(self) -> dict[str, Variant]:
        """Every different setting that is needed, by name: of the baselines, and of the points of
        all studies.
        """
        found = [self.variant(method, {}) for method in self.baselines]
        found += [
            self.variant(self.method, point.changes)
            for study in self.studies
            for point in study.points
        ]
        return {variant.name: variant for variant in found}

    def variant(self, method: str, changes: Given) -> Variant:
        """The settings of a point; points with the same effective settings are one."""
        usual = self._effective(self.base, method)
        asked = self._effective(self._varied(method, changes), method)
        differing = {name: asked[name] for name in asked if asked[name] != usual[name]}
        told = (
            ",".join(f"{name}={shown_value(value)}" for name, value in differing.items()) or DEFAULT
        )
        folder = re.sub(r"[^\w.,=+-]+", "_", told)
        return Variant(f"{method}/{folder}", method, differing, self._varied(method, differing))

    def _varied(self, method: str, changes: Given) -> AnySettings:
        known = {option.name for option in describe(method)}
        own = {name: value for name, value in changes.items() if name in known}
        common = {name: value for name, value in changes.items() if name not in known}
        return varied(self.base, method, common, own)

    def _effective(self, settings: AnySettings, method: str) -> Options:
        """The effective settings of a run; a refresh after the last epoch has no effect."""
        facts = run_facts(settings, "", method, 0)
        options = dict(facts.pop("options"))
        del facts["settings"]
        every = options.get("refresh_every")
        if every is not None and every >= settings.epochs:
            options["refresh_every"] = None
        return {**facts, **options}

    def notes(self) -> list[str]:
        """Which points cannot differ, and why."""
        found = []
        for study in self.studies:
            labels: dict[str, list[str]] = {}
            for point in study.points:
                labels.setdefault(self.variant(self.method, point.changes).name, []).append(
                    point.label
                )
            told = [", ".join(same) for same in labels.values() if len(same) > 1]
            found += [
                f"study {study.name}: {same} are the same with {self.base.epochs} epochs"
                for same in told
            ]
        blends = any("ema" in point.changes for study in self.studies for point in study.points)
        if blends and self._effective(self.base, self.method)["refresh_every"] is None:
            found.append(
                "ema changes nothing while the cache is filled once; give a --refresh-every below "
                "--epochs"
            )
        return found


def read_study(
    config: Path | None,
    grid: Path | None,
    names: Sequence[str],
    flags: Given,
    training: Given,
    **own: Any,
) -> StudySettings:
    """Defaults, then the config file, then the flags; a later one wins.

    Args:
        config: TOML file with any of the settings, ``baselines``, ``keep_models``, and a table
            ``[grid]`` of studies.
        grid: TOML file of what is varied; if not given the config's, or the shipped one.
        names: studies of it to make; none: those its ``studies`` names, or all.
        flags: settings and options of methods.
        training: fields of TrainingArguments.
        own: ``method``, ``baselines``, ``keep_models``; ``None`` is not given.
    """
    mine = {name: value for name, value in own.items() if value is not None}
    asked = read(config, {**flags, **mine}, training, StudySettings, [_GRID])
    method = asked.own.get("method", StudySettings.method)
    if method not in registry:
        raise SettingsError(registry.unknown(method))
    method = registry.canonical(method)
    named = split(asked.own.get("baselines", StudySettings.baselines))
    baselines = [name for name in named if name not in (method, "none")]
    settings = {**asked.settings, "methods": [method, *baselines]}
    if len(asked.tasks) > 1:
        raise SettingsError(
            f"task must be one for a study, got {', '.join(asked.tasks)}; make a study of each"
        )
    (base,) = replace(asked, settings=settings).bases(seeds=3).values()
    if grid is None and _GRID in asked.tables:
        tables, source = asked.tables[_GRID], f"grid of '{config}'"
    else:
        tables, source = read_toml(grid or DEFAULT_GRID), f"grid '{grid or DEFAULT_GRID}'"
    studies = read_grid(tables, source, names, base, method)
    keep_models = asked.own.get("keep_models", False)
    return StudySettings(base, studies, method, tuple(baselines), keep_models)


def read_grid(
    content: Given, source: str, names: Sequence[str], base: AnySettings, method: str
) -> tuple[StudySpec, ...]:
    """The studies of a grid, each of its points checked and its values read as what the method
    takes.

    Args:
        content: a table for each study, and optionally ``studies``, the default selection.
        source: what it is called in errors.
        names: studies to make.
        base: settings that the points change.
        method: the one that is studied.
    """
    tables = {name: table for name, table in content.items() if name != _STUDIES}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise SettingsError(f"{source}: {name} must be a table, [{name}], got {table!r}")
    if not tables:
        raise SettingsError(
            f"{source} must hold at least one study, got none; --write-grid writes an example"
        )
    chosen = split(names) or content.get(_STUDIES, list(tables))
    if not isinstance(chosen, list) or len({*map(str, chosen)}) != len(chosen):
        raise SettingsError(f"studies must be different names, got {chosen!r}")
    for name in chosen:
        if name not in tables:
            raise SettingsError(
                f"{source} has no study '{name}'{suggest(str(name), tables)}; it has "
                f"{', '.join(tables)}"
            )
    return tuple(_study(name, tables[name], base, method) for name in chosen)


def _study(name: str, table: Given, base: AnySettings, method: str) -> StudySpec:
    title, further = table.get(_TITLE, name), table.get(_POINTS, [])
    if not isinstance(title, str):
        raise SettingsError(f"study {name}: {_TITLE} must be a text, got {title!r}")
    if not isinstance(further, list) or not all(
        isinstance(point, Mapping) and point for point in further
    ):
        raise SettingsError(
            f"study {name}: {_POINTS} must be a list of tables such as {{ radius = 0.1 }}, got "
            f"{further!r}"
        )
    points: list[PointSpec] = []
    for entry, values in table.items():
        if entry in (_TITLE, _POINTS):
            continue
        if not isinstance(values, list) or not values:
            raise SettingsError(
                f"study {name}: {entry} must be a list of values, at least one, got {values!r}"
            )
        points += [_point(name, {entry: value}, base, method) for value in values]
    points += [_point(name, point, base, method) for point in further]
    labels = [point.label for point in points]
    if not points or len(set(labels)) < len(labels):
        raise SettingsError(
            f"study {name} must have points with different labels, at least one, got {labels}"
        )
    return StudySpec(name, title, tuple(points))


def _point(study: str, table: Given, base: AnySettings, method: str) -> PointSpec:
    changes = {
        name: _read(study, name, value, base, method)
        for name, value in table.items()
        if name != _LABEL
    }
    label = table.get(_LABEL, ", ".join(map(shown_value, changes.values())))
    if not isinstance(label, str) or not label:
        raise SettingsError(f"study {study}: {_LABEL} must be a text, not empty, got {label!r}")
    return PointSpec(label, changes)


def _read(study: str, name: str, value: Any, base: AnySettings, method: str) -> Any:
    """A value as the method's option or the setting takes it."""
    options = [option.name for option in describe(method)]
    told = {each.name: each for each in options_of(type(base))}
    settings = {n: e for n, e in told.items() if e.about.get("tunes") or e.about.get("varies")}
    if name in options:
        return create(method, **{name: value}).options()[name]
    if name in settings:
        return settings[name].value(value)
    raise SettingsError(
        f"study {study} has the unknown option '{name}'{suggest(name, [*options, *settings])}; "
        f"{method} has "
        f"{', '.join(options) or 'none'}; of the settings there are {', '.join(settings)}"
    )


def shown_value(value: Any) -> str:
    """A value as labels and names show it.

    Example:
        >>> shown_value(0.10), shown_value(None), shown_value("block")
        ('0.1', 'none', 'block')
    """
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_grid(path: Path) -> None:
    """Write the shipped grid to a new file, to be edited."""
    if path.exists():
        raise SettingsError(
            f"write-grid must be a new file, got '{path}', which exists; choose another name"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(DEFAULT_GRID.read_text(encoding="utf-8"), encoding="utf-8")


def choose_folder(settings: StudySettings) -> Path:
    """The folder that was named, or one that the same command finds again."""
    base = settings.base
    return writable(Path(base.output or f"runs/study-{base.title}-{Path(base.model).name}"))
