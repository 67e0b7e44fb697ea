"""Hints at misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(given: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing.

    Example:
        >>> suggest("archh", ["arch", "smart"]), suggest("x", ["arch"])
        (" (did you mean 'arch'?)", '')
    """
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
