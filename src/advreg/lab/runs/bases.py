"""Settings of each task from flags and a config file, for every command."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from advreg.core.checks import suggest
from advreg.core.options import Given, Options, options_of
from advreg.lab.catalogue import catalogue, is_method
from advreg.lab.kinds.registry import KINDS as DESCRIPTIONS
from advreg.lab.runs.settings import (
    RunSettings,
    SettingsError,
    names_of,
    unknown_task,
)

AnySettings = RunSettings
KINDS: tuple[type[RunSettings], ...] = tuple(
    import_module(kind.settings).SETTINGS for kind in DESCRIPTIONS.values()
)
"""The settings of each kind of task."""

_MOST_SEEDS = 10_000
_TABLES = ("options", "training")  # what a config file holds in tables


@dataclass(frozen=True)
class Asked:
    """The user's input, sorted; flags override the config file.

    Args:
        settings: of the runs.
        options: of methods, from their tables in the file.
        loose: options given as flags, for each method that has them.
        training: fields of TrainingArguments.
        own: settings of the command itself.
        tables: tables of the command, from the file.
        fixed: the settings that the file holds.
        path: of the file.
    """

    settings: Given = field(default_factory=dict)
    options: Mapping[str, Given] = field(default_factory=dict)
    loose: Given = field(default_factory=dict)
    training: Given = field(default_factory=dict)
    own: Given = field(default_factory=dict)
    tables: Mapping[str, Given] = field(default_factory=dict)
    fixed: Given = field(default_factory=dict)
    path: Path | None = None

    @property
    def tasks(self) -> list[str]:
        """The named tasks; without a name, the task of the given files."""
        tasks = split(self.settings.get("task") or [])
        if not tasks:
            owners = [kind.own_files for kind in KINDS if kind.claims(self.settings)]
            tasks = [owners[-1] if owners else KINDS[0].task]
        if len(set(tasks)) != len(tasks):
            raise SettingsError(f"task must be different names, at least one, got {tasks}")
        if len({kind_of(task) for task in tasks}) > 1:
            raise SettingsError(
                f"task must name tasks of one kind, got {', '.join(tasks)}; run one command "
                f"for each kind: {', '.join(kind.kind for kind in KINDS)}"
            )
        return tasks

    def inspect(self) -> None:
        """Refuse unusable data early."""
        for task in self.tasks:
            kind_of(task).inspect(self._of(task))

    def bases(self, **usual: Any) -> dict[str, RunSettings]:
        """The settings of each task; ``usual`` has the defaults."""
        return {task: self.base(task, usual) for task in self.tasks}

    def base(self, task: str, usual: Given) -> RunSettings:
        from advreg.methods import registry

        kind, given = kind_of(task), {**usual, **self._of(task)}
        for name in given.keys() - {each.name for each in options_of(kind)}:
            raise SettingsError(
                f"'{name}' is neither a setting of the task {task} nor an option of a method; "
                "leave it out"
            )
        if "seeds" in given:
            given["seeds"] = read_seeds(given["seeds"])
        values = {**kind.usual(given), **given}
        names = [registry.canonical(name) for name in split(values.get("methods", kind.methods))]
        options = {registry.canonical(name): dict(own) for name, own in self.options.items()}
        for method, own in options_for(names, self.loose).items():
            options[method] = {**options.get(method, {}), **own}
        training = {**values.pop("training", {}), **self.training}
        return kind(**{**values, "methods": names}, options=options, training=training)

    def _of(self, task: str) -> Options:
        """The settings for one task; with several tasks, data of the others are left out."""
        foreign = kind_of(task).foreign(task) if len(self.tasks) > 1 else ()
        kept = {name: value for name, value in self.settings.items() if name not in foreign}
        return {**kept, "task": task}


def read(
    path: Path | None,
    flags: Given,
    training: Given,
    own: type[Any] | None = None,
    tables: Sequence[str] = (),
    saved: Given | None = None,
) -> Asked:
    """Sort the user's input.

    The file holds settings by name; a table named like a method (``[arch]``) holds its options, and
    ``[training]`` fields of TrainingArguments.

    Args:
        path: TOML file.
        flags: settings, and options of methods.
        training: fields of TrainingArguments.
        own: settings of the command itself.
        tables: tables that the command has.
        saved: all settings of a run that is resumed; file and flags win.
    """
    values = _read_file(path, tables)
    options = {name: dict(_flat(values.pop(name))) for name in list(values) if is_method(name)}
    found = {name: values.pop(name) for name in tables if name in values}
    fields = {**values.pop("training", {}), **training}
    mine = [each.name for each in options_of(own) if each.help] if own is not None else []
    known = [*setting_names(), *mine]
    for name in (name for name in values if name not in known):
        raise SettingsError(
            f"config file '{path}' has the unknown key "
            f"'{name}'{suggest(name, [*known, *tables, *catalogue()])}; it may have "
            f"{', '.join(known)}, and a table for each of "
            f"{', '.join([*tables, 'training', *catalogue()])}"
        )
    old = dict(saved or {})
    for name, own_options in old.pop("options", {}).items():
        options[name] = {**own_options, **options.get(name, {})}
    fields = {**old.pop("training", {}), **fields}
    given = {**old, **values, **flags}
    return Asked(
        settings={name: given[name] for name in setting_names() if name in given},
        options=options,
        loose={name: value for name, value in flags.items() if name not in known},
        training=fields,
        own={name: given[name] for name in mine if given.get(name) is not None},
        tables=found,
        fixed=values,
        path=path,
    )


def read_settings(
    path: Path | None,
    flags: Given,
    training: Given,
    saved: Given | None = None,
) -> RunSettings:
    """The settings of one task: its defaults, overridden by the file and then by the flags. See
    :func:`read`.
    """
    bases = read(path, flags, training, saved=saved).bases()
    if len(bases) > 1:
        raise SettingsError(f"task must be one for advreg train, got {', '.join(bases)}")
    return next(iter(bases.values()))


def inspect(path: Path | None, flags: Given) -> None:
    """Refuse unusable data early: this is fast, and reading the settings imports torch."""
    values = {**(read_toml(path) if path is not None else {}), **flags}
    Asked({name: values[name] for name in setting_names() if name in values}).inspect()


def kind_of(task: str) -> type[RunSettings]:
    """The settings of a task's kind."""
    for kind in KINDS:
        if task in kind.tasks:
            return kind
    raise unknown_task(task, [task for kind in KINDS for task in kind.tasks])


def setting_names() -> list[str]:
    """The settings of all kinds of tasks that have a flag and a key in config files."""
    names = (each.name for kind in KINDS for each in options_of(kind))
    return [name for name in dict.fromkeys(names) if name not in _TABLES]


def options_for(methods: Sequence[str], given: Given) -> dict[str, Options]:
    """Assign each option to the methods that have it; an option that no method has is an error."""
    from advreg.methods.base import describe, options_named

    named = {method: {own: options_named(method, own) for own in given} for method in methods}
    for option in given:
        if not any(owners[option] for owners in named.values()):
            known = sorted({own.name for method in methods for own in describe(method)})
            raise SettingsError(
                f"none of the methods {', '.join(methods)} has the option "
                f"'{option}'{suggest(option, known)}"
            )
    return {
        method: {name: given[option] for option, names in owners.items() for name in names}
        for method, owners in named.items()
    }


def saved_settings(folder: Path) -> Options:
    """All settings of the runs in a folder, as :meth:`RunSettings.saved` left them in their plans;
    empty where there are none.
    """
    for plan in sorted(folder.glob("*/plan.json")):
        try:
            return dict(json.loads(plan.read_text(encoding="utf-8"))["settings"])
        except (ValueError, KeyError, TypeError):
            continue  # damaged plans are refused by name when their run is resumed
    return {}


def varied(base: RunSettings, method: str, settings: Given, options: Given) -> RunSettings:
    """The settings of a run of one method: the settings of a task, with some settings and options
    of the method changed.
    """
    mine = {method: {**base.options.get(method, {}), **options}}
    return replace(base, **settings, methods=(method,), options=mine, output=None)


def shown(base: RunSettings, methods: Sequence[str]) -> Options:
    """Settings as a record holds them, except settings that it holds elsewhere or knows by
    a fingerprint.
    """
    kept = names_of(type(base), "result", "compute", "recipe")
    options = {method: base.method(method).options() for method in methods}
    return {name: getattr(base, name) for name in kept} | {"options": options}


def split(names: str | Sequence[object]) -> list[str]:
    """Names from ``"a,b"`` or a list of such.

    Example:
        >>> split("rte, mrpc"), split(["rte,mrpc", "cola"])
        (['rte', 'mrpc'], ['rte', 'mrpc', 'cola'])
    """
    parts = [names] if isinstance(names, str) else names
    return [name.strip() for part in parts for name in str(part).split(",") if name.strip()]


def read_seeds(given: int | str | Sequence[int | str]) -> list[int]:
    """A number of seeds, from 0 on, or a list of seeds; at least one.

    Example:
        >>> read_seeds("3"), read_seeds("5,7"), read_seeds(["5,"]), read_seeds([1, 2])
        ([0, 1, 2], [5, 7], [5], [1, 2])
    """
    try:
        found = _seeds(given)
    except (TypeError, ValueError):
        raise SettingsError(f"seeds must be how many (3) or which (0,5,7), got {given!r}") from None
    if not 0 < len(found) <= _MOST_SEEDS:
        raise SettingsError(
            f"seeds must be how many, 1 to {_MOST_SEEDS}, or which (0,5,7; one alone: 0,), got "
            f"{given!r}"
        )
    return found


def _seeds(given: int | str | Sequence[int | str]) -> list[int]:
    if isinstance(given, int):
        return list(range(min(given, _MOST_SEEDS + 1)))
    if isinstance(given, str):
        return [int(part) for part in split(given)] if "," in given else _seeds(int(given))
    return _seeds(given[0]) if [*map(type, given)] == [str] else [*map(int, split(given))]


def read_toml(path: Path) -> Options:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"config file '{path}' does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"config file '{path}' cannot be read: {error}") from None


def _read_file(path: Path | None, tables: Sequence[str]) -> Options:
    """The values of a config file; tables must be tables, and code of models cannot be allowed."""
    values = read_toml(path) if path is not None else {}
    for name in values:
        is_table = is_method(name) or name in ("training", *tables)
        if is_table and not isinstance(values[name], dict):
            raise SettingsError(
                f"config file '{path}': {name} must be a table, [{name}], got {values[name]!r}"
            )
    if "trust_remote_code" in values:
        raise SettingsError(
            f"config file '{path}': trust_remote_code must be given as a flag; a file cannot set it"
        )
    return values


def _flat(table: Given) -> Iterator[tuple[str, Any]]:
    """The options of a method; for a sum, ``temporal.weight = 10`` is a table in its table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", own) for inner, own in value.items())
        else:
            yield name, value
