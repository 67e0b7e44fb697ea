"""Flags made from what they set: the fields of the settings, and every option of every method."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from advreg.methods import OptionInfo, describe, registry
from advreg.methods.coerce import type_text
from advreg.recipes.settings import TrainSettings

_OPTIONS_PANEL = "Options of the methods"
_SINGULAR = {"methods": "--method", "seeds": "--seed"}  # flags that may be repeated
_NO_FLAG = ("options", "training")  # tables of a config file


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(config, set, …, **values)`` a flag for each other setting and each option of a method."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {parameter.name for parameter in own}
    settings = [parameter for parameter in setting_flags() if parameter.name not in named]
    parameters = [*settings, *own, *option_flags()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def setting_flags() -> list[inspect.Parameter]:
    """One flag per field of :class:`TrainSettings`; the text is turned into a value where files are read too."""
    hints = get_type_hints(TrainSettings)
    return [
        _flag(
            field.name,
            _SINGULAR.get(field.name, _dashed(field.name)),
            field.metadata["help"] + _default_text(field.default),
            type_text(hints[field.name]).removesuffix(" or none"),
            repeated=get_origin(hints[field.name]) is tuple,
            switch=hints[field.name] is bool,
        )
        for field in dataclasses.fields(TrainSettings)
        if field.name not in _NO_FLAG
    ]


def option_flags() -> list[inspect.Parameter]:
    """One flag per option, whichever methods have it."""
    owners: dict[str, list[str]] = {}
    first: dict[str, OptionInfo] = {}
    for method in registry:
        for option in describe(method):
            owners.setdefault(option.name, []).append(method)
            first.setdefault(option.name, option)
    return [
        _flag(
            name,
            _dashed(name),
            f"{option.help} ({', '.join(owners[name])})",
            type_text(option.type),
            panel=_OPTIONS_PANEL,
        )
        for name, option in first.items()
    ]


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are Python literals where they can be, text otherwise.

    Example:
        >>> parse_assignments(["weight_decay=0.1", "lr_scheduler_type=cosine", "fp16=false"])
        {'weight_decay': 0.1, 'lr_scheduler_type': 'cosine', 'fp16': False}
    """
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set takes NAME=VALUE, got '{pair}'")
        values[name.strip()] = _literal(text.strip())
    return values


def _flag(
    name: str,
    declaration: str,
    help: str,
    takes: str,
    repeated: bool = False,
    panel: str | None = None,
    switch: bool = False,
) -> inspect.Parameter:
    kind: Any = bool | None if switch else list[str] | None if repeated else str | None
    # escaped, because rich would read [tokens] as markup
    shown = help.replace("[", r"\[")
    option = typer.Option(
        declaration, help=shown, metavar=None if switch else takes, rich_help_panel=panel, show_default=False
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default_text(default: Any) -> str:
    if default is None:
        return ""
    return f" [{', '.join(map(str, default)) if isinstance(default, tuple) else default}]"


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
