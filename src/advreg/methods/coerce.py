"""Values for options as they come from a command line or a file: text turned into what the option
takes.
"""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from advreg.core.checks import check_choice

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def coerce(name: str, value: Any, hint: object) -> Any:
    """``value`` as the type ``hint``, or an error that names the option, the value and what it
    takes.

    Example:
        >>> coerce("refresh_every", "none", int | None), coerce("radius", "0.5", float)
        (None, 0.5)
        >>> coerce("fuse", "no", bool)
        False
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = [kind for kind in get_args(hint) if kind is not type(None)]
        is_none = value is None or (isinstance(value, str) and value.lower() == "none")
        return None if is_none else coerce(name, value, inner[0])
    if origin is Literal:
        check_choice(name, value, get_args(hint))
        return value
    if hint is bool:
        return _truth(name, value)
    if hint in (int, float):
        return _number(name, value, hint)
    return value


def type_text(hint: object) -> str:
    """An option's type as users read it.

    Example:
        >>> type_text(int | None), type_text(Literal["l2", "linf"])
        ('int or none', 'l2 | linf')
    """
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(
            "none" if kind is type(None) else type_text(kind) for kind in get_args(hint)
        )
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return type_text(get_args(hint)[0])
    return str(getattr(hint, "__name__", hint))


def _truth(name: str, value: object) -> bool:
    word = str(value).lower()
    if word in _YES or word in _NO:
        return word in _YES
    raise ValueError(f"{name} must be true or false, got {value!r}")


def _number(name: str, value: Any, kind: type[int] | type[float]) -> int | float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool) or (kind is int and not number.is_integer()):
        raise ValueError(f"{name} must be a {'whole ' if kind is int else ''}number, got {value!r}")
    return kind(number)
