"""Options of methods: fields of dataclasses, with a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from advreg.core.checks import Check, check_choice

Options = dict[str, Any]
"""Values of options by name."""


@dataclass(frozen=True)
class OptionInfo:
    """One option as users meet it: name, type, default, help."""

    name: str
    type: object
    default: Any
    help: str
    check: Check | None = field(default=None, compare=False, repr=False)

    def require(self, value: object) -> None:
        """Refuse a value that the option does not take."""
        if get_origin(self.type) is Literal:
            check_choice(self.name, value, get_args(self.type))
        if self.check is not None:
            self.check(self.name, value)


def option(default: object, help: str, *, check: Check | None = None) -> Any:
    """A method's option: a dataclass field with its help text.

    Args:
        default: its value unless given.
        help: what it means, for users.
        check: refuses bad values, given the option's name and the value. The choices of a
            ``Literal`` type need none.
    """
    return field(default=default, metadata={"help": help, "check": check})
