"""Options: fields of dataclasses with a text, whose types say which values they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_type_hints

from advreg.core.checks import Check
from advreg.core.coerce import coerce

Options = dict[str, Any]
"""Values of options by name."""

Given = Mapping[str, Any]
"""Settings and options as they are given, by name."""

Preset = Literal["translation", "understanding", "fine-tuning"]
"""Families of tasks with options that suit them."""


@dataclass(frozen=True)
class OptionInfo:
    """One option as users meet it: name, type, default, help.

    Args:
        check: refuses bad values of the type.
        about: further properties.
    """

    name: str
    type: object
    default: Any
    help: str = ""
    check: Check | None = field(default=None, compare=False, repr=False)
    about: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def value(self, given: object) -> Any:
        """The value as the option's type has it; a bad one is refused by name."""
        found = coerce(self.name, given, self.type)
        if self.check is not None and found is not None:
            self.check(self.name, found)
        return found


def option(default: object, help: str, *, check: Check | None = None, **about: object) -> Any:
    """An option: a dataclass field with its help text.

    Args:
        default: its value unless given.
        help: what it means, for users.
        check: refuses bad values, given the option's name and the value. The choices of a
            ``Literal`` type need none.
        about: further properties.
    """
    metadata = {"help": help, "check": check, "about": about}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> tuple[OptionInfo, ...]:
    """The options of a dataclass: the fields that it is made with."""
    key: Any = kind
    return _options_of(key)


@cache
def _options_of(kind: Any) -> tuple[OptionInfo, ...]:
    hints = get_type_hints(kind)
    return tuple(
        OptionInfo(each.name, hints[each.name], each.default, **each.metadata)
        for each in dataclasses.fields(kind)
        if each.init
    )


class Checked:
    """A dataclass that converts its options to their types when it is made, and refuses bad values
    by name.
    """

    def __post_init__(self) -> None:
        for each in options_of(type(self)):
            object.__setattr__(self, each.name, each.value(getattr(self, each.name)))
