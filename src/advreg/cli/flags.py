"""Flags made from what they set: the fields of the settings, and every option of every method."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from advreg.lab.runs.settings import TrainSettings
from advreg.methods import OptionInfo, describe, registry
from advreg.methods.coerce import coerce, type_text

_OPTIONS_PANEL = "Options of the methods"
_SINGULAR = {"methods": "--method", "seeds": "--seed"}  # flags that may be repeated
_SWITCHES = ("trust_remote_code",)  # given or not, without a value
_NO_FLAG = ("options", "training")  # tables of a config file


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(config, set, …, **values)`` a flag for each other setting and each option of a
    method.
    """
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    named = {parameter.name for parameter in own}
    settings = [parameter for parameter in setting_flags() if parameter.name not in named]
    parameters = [*settings, *own, *option_flags(), *part_flags()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def setting_flags() -> list[inspect.Parameter]:
    """One flag per field of :class:`TrainSettings`."""
    return flags_of(TrainSettings)


def option_flags() -> list[inspect.Parameter]:
    """One flag per option, whichever methods have it."""
    owners: dict[str, list[str]] = {}
    first: dict[str, OptionInfo] = {}
    for method in registry:
        for option in describe(method):
            owners.setdefault(option.name, []).append(method)
            first.setdefault(option.name, option)
    return [
        _flag(name, f"{option.help} ({', '.join(owners[name])})", option.type, panel=_OPTIONS_PANEL)
        for name, option in first.items()
    ]


def part_flags() -> list[inspect.Parameter]:
    """A flag per method and option, such as ``--temporal.weight``, for one of several methods or a
    part of a sum; they are not listed by ``--help``.
    """
    return [
        _flag(f"{method}__{option.name}", option.help, option.type, hidden=True)
        for method in registry
        for option in describe(method)
    ]


def given_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, by the names of settings and options."""
    return {
        name.replace("__", "."): value for name, value in flags.items() if value not in (None, [])
    }


def flags_of(
    settings: type[Any], but: Container[str] = (), panel: str | None = None
) -> list[inspect.Parameter]:
    """One flag per field of a dataclass of settings; the text is turned into a value where files
    are read too.
    """
    hints = get_type_hints(settings)
    return [
        _flag(
            field.name,
            field.metadata["help"] + _default_text(field.default),
            hints[field.name],
            panel,
        )
        for field in dataclasses.fields(settings)
        if field.name not in _NO_FLAG and field.name not in but
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
    name: str, help: str, hint: Any, panel: str | None = None, hidden: bool = False
) -> inspect.Parameter:
    kind: Any = (
        bool | None
        if name in _SWITCHES
        else list[str] | None
        if get_origin(hint) is tuple
        else str | None
    )
    is_truth = bool in (hint, *get_args(hint))
    option = typer.Option(
        _SINGULAR.get(name, f"--{name.replace('__', '.').replace('_', '-')}"),
        help=help.replace("[", r"\["),  # escaped, because rich would read [tokens] as markup
        metavar=None
        if name in _SWITCHES
        else "yes | no"
        if is_truth
        else type_text(hint).removesuffix(" or none"),
        parser=_yes_or_no if is_truth and name not in _SWITCHES else None,
        rich_help_panel=panel,
        show_default=False,
        hidden=hidden,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _yes_or_no(text: str) -> str:
    """Refused here, for in ``--fuse --model bert`` it is ``--model``, and of ``bert`` nobody would
    know what it is.
    """
    try:
        coerce("", text, bool)
    except ValueError as error:
        raise typer.BadParameter(f"must be yes or no, got '{text}'") from error
    return text


def _default_text(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return f" [{'yes' if default else 'no'}]"
    return f" [{', '.join(map(str, default)) if isinstance(default, tuple) else default}]"


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
