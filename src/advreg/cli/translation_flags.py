"""Flags of ``advreg train`` for translation; apart from what they set in motion, so that help comes at once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from advreg.methods.coerce import type_text
from advreg.recipes.settings import DOCSTRINGS, FILES, TrainSettings, read_toml
from advreg.recipes.translation_settings import TASKS, TranslationSettings
from advreg.recipes.understanding import TASKS as UNDERSTANDING

_PANEL = "Translation (--task translation, or a known corpus)"
_NO_FLAG = ("options", "training")


def is_translation(config: Path | None, given: Mapping[str, Any]) -> bool:
    """Is a translation task asked for, by flag or by config file? What has its text, if no known task is named."""
    values = {**(read_toml(config) if config is not None else {}), **given}
    task = values.get("task")
    return task in TASKS or ("train_source" in values and task not in (DOCSTRINGS, FILES, *UNDERSTANDING))


def with_translation_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each setting of a translation that it has none for yet; to be put above ``with_flags``."""
    hints = get_type_hints(TranslationSettings)
    known = {field.name for field in dataclasses.fields(TrainSettings)}
    signature = inspect.signature(command)
    more = [
        _flag(field, type_text(hints[field.name]).removesuffix(" or none"), get_origin(hints[field.name]) is tuple)
        for field in dataclasses.fields(TranslationSettings)
        if field.name not in known and field.name not in _NO_FLAG
    ]
    parameters = [*signature.parameters.values(), *more]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _flag(field: dataclasses.Field[Any], takes: str, repeated: bool) -> inspect.Parameter:
    kind: Any = list[str] | None if repeated else str | None
    default = "" if field.default is None else f" [{field.default}]"
    shown = (field.metadata["help"] + default).replace("[", r"\[")  # escaped, because rich would read it as markup
    option = typer.Option(
        f"--{field.name.replace('_', '-')}", help=shown, metavar=takes, rich_help_panel=_PANEL, show_default=False
    )
    annotation: Any = Annotated[kind, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
