"""Refusing bad values where they are given: the argument, the value, and what it must be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any

Check = Callable[[str, Any], None]
"""Refuses a bad value, given its name."""


class UnsupportedError(ValueError):
    """A method needs what a trainer, a model or a batch does not offer.

    Example:
        >>> from advreg import OLS, prepare
        >>> from torch.utils.data import DataLoader
        >>> try:
        ...     prepare(torch.nn.Linear(2, 2), loader, OLS(), optimizer)
        ... except UnsupportedError as error:
        ...     print(str(error).split(",")[0])
        Linear has no `config`
    """


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """``value`` must be one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def check_whole(name: str, value: object, least: int, otherwise: str = "") -> None:
    """``value`` must be a whole number of at least ``least``; ``otherwise`` names what else may be
    given.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be a whole number of {least} or more{otherwise}, got {value!r}"
        )


def check_count(name: str, value: object) -> None:
    """``value`` must be a whole number of at least 1."""
    check_whole(name, value, least=1)


def check_not_negative(name: str, value: float) -> None:
    """``value`` must be a finite number of zero or more."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number of 0 or more, got {value}")


def check_positive(name: str, value: float) -> None:
    """``value`` must be a finite number above zero."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value}")


def check_share(name: str, value: float) -> None:
    """``value`` must be at least 0 and below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def check_decay(name: str, value: float) -> None:
    """The decay of a moving average."""
    if not 0 < value < 1:
        raise ValueError(
            f"{name} must be above 0 and below 1, got {value}; usual are 0.99 to 0.9999"
        )


def optional(check: Check) -> Check:
    """The same check of a value that may also be ``None``."""

    def checked(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return checked


def unknown_method(name: str, known: Iterable[str]) -> str:
    """The text of an error for a method, or a part of a sum, that does not exist."""
    names = list(known)
    part = next((part for part in name.split("+") if part not in names), name)
    return f"unknown method '{part}'{suggest(part, names)}; there are {', '.join(names)}"


def suggest(given: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing.

    Example:
        >>> suggest("radios", ["radius", "weight"])
        " (did you mean 'radius'?)"
    """
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
