"""Options: fields of dataclasses with a text, whose types say which values they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_type_hints

from advreg.core.coerce import coerce

Preset = Literal["translation", "understanding", "fine-tuning"]
"""Families of tasks that have options of their own."""


@dataclass(frozen=True)
class OptionInfo:
    """One option as users meet it: name, type, default, help; and what else its field says."""

    name: str
    type: Any
    default: Any
    help: str
    about: Mapping[str, Any] = field(default_factory=dict)


def option(default: Any, help: str, **about: Any) -> Any:
    """A field with its help text, and what else is to be known of it."""
    metadata = {"help": help, **about}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> tuple[OptionInfo, ...]:
    """The options of a dataclass: the fields that it is made with."""
    key: Any = kind
    return _options_of(key)


@cache
def _options_of(kind: Any) -> tuple[OptionInfo, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        OptionInfo(
            each.name,
            hints[each.name],
            each.default,
            each.metadata.get("help", ""),
            {name: value for name, value in each.metadata.items() if name != "help"},
        )
        for each in dataclasses.fields(kind)
        if each.init
    )


class Checked:
    """A dataclass whose options become values of their types as it is made; others are refused by
    name.
    """

    def __post_init__(self) -> None:
        for each in options_of(type(self)):
            value = coerce(each.name, getattr(self, each.name), each.type)
            object.__setattr__(self, each.name, value)
