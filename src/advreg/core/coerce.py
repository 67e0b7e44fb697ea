"""Values as options take them: text from a command line or a file becomes a number, a truth value,
a choice, a tuple or none.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from advreg.core.checks import check_choice

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def coerce(name: str, value: Any, hint: object) -> Any:
    """``value`` as the type ``hint``, or an error that names the option, the value and what it
    takes.

    Example:
        >>> coerce("refresh_every", "none", int | None), coerce("fuse", "no", bool)
        (None, False)
        >>> coerce("epochs", "3", int), coerce("seeds", 4, tuple[int, ...])
        (3, (4,))
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        is_none = value is None or (isinstance(value, str) and value.lower() == "none")
        return None if is_none else coerce(name, value, arguments[0])
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(coerce(name, item, arguments[0]) for item in items)
    if origin is Literal:
        check_choice(name, value, arguments)
        return value
    plain: Callable[..., Any] | None = _PLAIN.get(hint)
    return value if plain is None else plain(name, value)


def type_text(hint: object) -> str:
    """An option's type as users read it.

    Example:
        >>> type_text(int | None), type_text(Literal["l2", "linf"])
        ('int or none', 'l2 | linf')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if kind is type(None) else type_text(kind) for kind in arguments)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return type_text(arguments[0])
    return str(getattr(hint, "__name__", hint))


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in (*_YES, *_NO):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return word in _YES


def _real(name: str, value: Any, words: str = "a number") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{name} must be {words}, got {value!r}")
    return number


def _whole(name: str, value: Any) -> int:
    number = _real(name, value, "a whole number")
    if not number.is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value if isinstance(value, int) else int(number)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{name} must be a text, not empty, got {value!r}; correct it or leave it out"
        )
    return value


_PLAIN: dict[Any, Callable[..., Any]] = {bool: _truth, int: _whole, float: _real, str: _text}
