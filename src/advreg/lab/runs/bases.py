"""The settings that many runs share, from flags and a TOML file: for tasks of understanding and of
translation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.kinds.models import SCRATCH
from advreg.lab.kinds.translation.parallel import TRANSLATION
from advreg.lab.runs import translation_settings as translation
from advreg.lab.runs.settings import (
    DOCSTRINGS,
    FILES,
    SettingsError,
    TrainSettings,
    read_config_file,
    read_settings,
    require_known,
    take_options,
)
from advreg.lab.runs.translation_settings import TranslationSettings, read_translation_settings

AnySettings = TrainSettings | TranslationSettings

_OF_TABLES = ("train", "dev", "text_column", "pair_column", "label_column")
_OF_TEXT = (
    "source",
    "target",
    *(f"{s}_{side}" for s in ("train", "valid", "test") for side in ("source", "target")),
)
_NOT_SHOWN = ("task", "methods", "seeds", "output", "data", "train", "dev", *_OF_TEXT)


@dataclass(frozen=True)
class ConfigFile:
    """A config file, sorted: settings, options of methods, fields of TrainingArguments, and what is
    the command's.
    """

    path: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_config(
    path: Path | None, own: Mapping[str, type], tables: Sequence[str] = ()
) -> ConfigFile:
    """Read and sort a config file.

    Args:
        path: of the file; none: nothing is set.
        own: keys that the command has beside those of ``advreg train``, and their types.
        tables: tables that it has.
    """
    if path is None:
        return ConfigFile()
    values = read_config_file(path, *tables)
    options = take_options(values)
    training = values.pop("training", {})
    found = {name: values.pop(name) for name in tables if name in values}
    mine = {name: values.pop(name) for name in own if name in values}
    for name, value in mine.items():
        if type(value) is not own[name]:
            raise SettingsError(
                f"config file '{path}': {name} must be of type {own[name].__name__}, got {value!r}"
            )
    require_known(values, [*_setting_names(), *own], tables, path)
    return ConfigFile(path, values, options, training, mine, found)


def _setting_names() -> list[str]:
    """Of both kinds of tasks."""
    fields = (*dataclasses.fields(TrainSettings), *dataclasses.fields(TranslationSettings))
    return list(
        dict.fromkeys(each.name for each in fields if each.name not in ("options", "training"))
    )


def read_bases(
    file: ConfigFile, values: Mapping[str, Any], training: Mapping[str, Any], usual_preset: bool
) -> dict[str, AnySettings]:
    """The settings of each task: defaults, then the file's options and fields, then what is given;
    a later one wins.

    Args:
        file: the config file; its settings are expected in ``values``.
        values: settings and options of methods; ``task`` holds names, as :func:`split` takes them.
        training: fields of TrainingArguments.
        usual_preset: use ``preset="fine-tuning"`` for a pretrained model, where none is given.
    """
    values = dict(values)
    tasks = split(values.pop("task", None) or _usual_task(values))
    if not tasks or len(set(tasks)) != len(tasks):
        raise SettingsError(f"task must be different names, at least one, got {tasks}")
    translating = [task for task in tasks if task in translation.TASKS]
    if translating and translating != tasks:
        raise SettingsError(
            f"task must be of translation or of understanding, not of both, got {', '.join(tasks)}"
        )
    if usual_preset and not translating and values.get("model", SCRATCH) != SCRATCH:
        values.setdefault("preset", "fine-tuning")
    return {
        task: _base(task, values, {**file.training, **training}, file.options) for task in tasks
    }


def _usual_task(values: Mapping[str, Any]) -> str:
    if values.get("train_source"):
        return TRANSLATION
    return FILES if values.get("train") or values.get("dev") else DOCSTRINGS


def _base(
    task: str,
    values: Mapping[str, Any],
    training: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
) -> AnySettings:
    """The settings of one task; those of data that are not its own are left out."""
    base: AnySettings
    if task in translation.TASKS:
        foreign = () if task == TRANSLATION else _OF_TEXT
        mine = {name: value for name, value in values.items() if name not in foreign}
        base = read_translation_settings(None, {**mine, "task": task}, training)
    else:
        foreign = (*(() if task == FILES else _OF_TABLES), *(() if task in TASKS else ("data",)))
        mine = {name: value for name, value in values.items() if name not in foreign}
        base = read_settings(None, {**mine, "task": task}, training)
    merged = {
        name: {**options.get(name, {}), **base.options.get(name, {})}
        for name in {**options, **base.options}
    }
    return replace(base, options={name: given for name, given in merged.items() if given})


def varied(
    base: AnySettings, method: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> AnySettings:
    """The settings of a run of one method: a task's, with some of them and some of the method's
    options in place.
    """
    mine = {method: {**base.options.get(method, {}), **options}}
    return replace(base, **settings, methods=(method,), options=mine, output=None)


def shown(base: AnySettings, methods: Sequence[str]) -> dict[str, Any]:
    """Settings as a record holds them: without what it holds elsewhere or knows by a
    fingerprint.
    """
    values = {each.name: getattr(base, each.name) for each in dataclasses.fields(base)}
    options = {method: base.method(method).options() for method in methods}
    return {name: value for name, value in values.items() if name not in _NOT_SHOWN} | {
        "options": options
    }


def split(names: str | Sequence[str]) -> list[str]:
    """Names from ``"a,b"`` or a list of such.

    Example:
        >>> split("rte, mrpc"), split(["rte,mrpc", "cola"])
        (['rte', 'mrpc'], ['rte', 'mrpc', 'cola'])
    """
    parts = [names] if isinstance(names, str) else names
    return [name.strip() for part in parts for name in str(part).split(",") if name.strip()]


def read_seeds(given: int | str | Sequence[int]) -> list[int]:
    """How many seeds, from 0 on, or which; at least one.

    Example:
        >>> read_seeds("3"), read_seeds("5,7"), read_seeds("5,"), read_seeds([1, 2])
        ([0, 1, 2], [5, 7], [5], [1, 2])
    """
    try:
        found = _seeds(given)
    except (TypeError, ValueError):
        raise SettingsError(f"seeds must be how many (3) or which (0,5,7), got {given!r}") from None
    if not found:
        raise SettingsError(
            f"seeds must be how many, 1 or more, or which (0,5,7; one alone: 0,), got {given!r}"
        )
    return found


def _seeds(given: int | str | Sequence[int]) -> list[int]:
    if isinstance(given, int):
        return list(range(given))
    if isinstance(given, str):
        return [int(part) for part in split(given)] if "," in given else list(range(int(given)))
    return [int(seed) for seed in given]
