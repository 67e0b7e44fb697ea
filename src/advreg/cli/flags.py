"""Flags for the settings of every kind of task and every option of every method. They are made
from the settings and the catalogue of methods, without torch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Annotated, Any, get_args

import typer

from advreg.core.coerce import coerce, type_text
from advreg.core.options import OptionInfo, options_of
from advreg.lab.catalogue import catalogue
from advreg.lab.runs.bases import KINDS, setting_names
from advreg.lab.runs.settings import RunSettings, flag_name

_OPTIONS_PANEL = "Options of the methods"
_ALIASES = {"methods": "method"}  # of flags, by the name that was given


_complete: dict[str, Callable[..., None]] = {}  # commands by name, for :func:`completed`


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(config, set, …, **values)`` a flag for each other setting and each option of a
    method, once it runs; until then it has its own flags alone, so that other commands start fast.
    """
    _complete[command.__name__] = command
    return _with_signature(command, _own_flags(command))


def completed(name: str) -> Any:
    """The command of this name with all its flags; ``None`` if it has no others than its own."""
    if name not in _complete:
        return None
    own = _own_flags(_complete[name])
    named = {parameter.name for parameter in own}
    settings = [parameter for parameter in setting_flags() if parameter.name not in named]
    parameters = [*settings, *own, *option_flags(), *hidden_flags()]
    alone = typer.Typer(add_completion=False)
    alone.command(name)(_with_signature(_complete[name], parameters))
    return typer.main.get_command(alone)


def _own_flags(command: Callable[..., None]) -> list[inspect.Parameter]:
    signature = inspect.signature(inspect.unwrap(command), eval_str=True)
    return [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]


def _with_signature(
    command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """The command, as typer is to see it."""

    @wraps(command)
    def seen(**values: Any) -> None:
        command(**values)

    seen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    seen.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return seen


@cache
def setting_flags() -> list[inspect.Parameter]:
    """A flag for each setting of any kind of task, the most important first."""
    places = {
        each.name: each.about.get("main") for kind in reversed(KINDS) for each in options_of(kind)
    }  # the first kind decides
    return [_setting_flag(name) for name in sorted(setting_names(), key=lambda n: places[n] or 99)]


@cache
def option_flags() -> list[inspect.Parameter]:
    """A flag for each option of any method."""
    owners: dict[str, list[str]] = {}
    first: dict[str, OptionInfo] = {}
    for method, entry in catalogue().items():
        for option in entry.options:
            owners.setdefault(option.name, []).append(method)
            first.setdefault(option.name, option)
    return [
        _flag(name, f"{option.help} ({', '.join(owners[name])})", option.type, _OPTIONS_PANEL)
        for name, option in first.items()
    ]


@cache
def hidden_flags() -> list[inspect.Parameter]:
    """Flags that ``--help`` leaves out: one for each method and option, such as
    ``--temporal.weight``, for one of several methods or a part of a sum; and ``--seed``.
    """
    parts = [
        _flag(f"{method}__{option.name}", option.help, option.type, hidden=True)
        for method, entry in catalogue().items()
        for option in entry.options
    ]
    return [*parts, _flag("seed", "a seed; may be repeated", tuple[str, ...], hidden=True)]


def normalised(name: str) -> str:
    """The flag for a given name; for typer."""
    return _ALIASES.get(name, name)


def given_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, by the names of settings and options."""
    given = {
        name.replace("__", "."): value for name, value in flags.items() if value not in (None, [])
    }
    if "seed" in given:
        given["seeds"] = [f"{','.join(given.pop('seed'))},"]
    return given


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


def _setting_flag(name: str) -> inspect.Parameter:
    """The flag of a setting, with differences between the kinds of tasks that have it."""
    found = {k: each for k in KINDS for each in options_of(k) if each.name == name}
    first = next(iter(found.values()))
    helps = {kind: each.help for kind, each in found.items()}
    defaults = {kind: _shown(each.default) for kind, each in found.items()}
    default = _merged(defaults, "; ")
    return _flag(
        name,
        _merged(helps, "; ") + (f" [{default}]" if default else ""),
        first.type,
        None if first.about.get("main") else _panel(next(iter(found)), first),
        switch=first.type is bool and first.default is False,
    )


def _merged(texts: Mapping[type[RunSettings], str], separator: str) -> str:
    """The text of the first kind of task, then the texts of other kinds where they differ."""
    (_, first), *others = texts.items()
    told = [f"{kind.kind}: {text}" for kind, text in others if text not in ("", first)]
    return separator.join([first, *told]) if first else separator.join(told)


def _panel(kind: type[RunSettings], setting: OptionInfo) -> str:
    if kind is not KINDS[0]:
        return f"{kind.kind.capitalize()} (--task {kind.own_files}, or a known corpus)"
    return "Data" if setting.about.get("role") in ("data", "files") else "Training"


def _flag(
    name: str,
    help: str,
    hint: Any,
    panel: str | None = None,
    hidden: bool = False,
    switch: bool = False,
) -> inspect.Parameter:
    kind: Any = bool if switch else list[str] if hint == tuple[str, ...] else str
    is_truth = bool in (hint, *get_args(hint)) and not switch
    takes = "yes | no" if is_truth else type_text(hint).removesuffix(" or none")
    option = typer.Option(
        flag_name(name.replace("__", ".")),
        help=escaped(help),
        metavar=None if switch else takes,
        parser=_yes_or_no if is_truth else None,
        rich_help_panel=panel,
        show_default=False,
        hidden=hidden,
    )
    takes_text = Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=takes_text
    )


def escaped(help: str) -> str:
    """A help text, escaped so that rich does not read ``[grid]`` as markup."""
    return help.replace("[", r"\[")


def _yes_or_no(text: str) -> str:
    """Refused here, because in ``--fuse --model bert`` the value would be ``--model``."""
    try:
        coerce("", text, bool)
    except ValueError as error:
        raise typer.BadParameter(f"must be yes or no, got '{text}'") from error
    return text


def _shown(default: Any) -> str:
    """A default as help texts show it."""
    if default is None or default is False:
        return ""
    if default is True:
        return "yes"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
