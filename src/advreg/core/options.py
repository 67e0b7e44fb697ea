"""Options of methods: fields of dataclasses, with a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OptionInfo:
    """One option as users meet it: name, type, default, help."""

    name: str
    type: Any
    default: Any
    help: str


def option(default: Any, help: str) -> Any:
    """A method's option: a dataclass field with its help text."""
    return field(default=default, metadata={"help": help})
