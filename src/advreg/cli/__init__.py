"""The command ``advreg``: thin layers of parse, call, print."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import unicodedata

USER_ERRORS = (OSError, ValueError, FloatingPointError)
"""Errors whose text is meant for users, such as most of advreg's own."""


def main() -> None:
    """Entry point: errors worded for users are printed without a traceback, unless ADVREG_DEBUG is
    set.
    """
    _spell_what_cannot_be_shown()
    try:
        from advreg.cli.app import app, user_errors
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app()
    except USER_ERRORS as error:
        _tell(error)
    except Exception as error:  # only then, for user_errors() imports torch
        worded = _of_another_process(error)
        if worded is None and not isinstance(error, user_errors()):
            raise
        _tell(worded or error)


_SPELT = {
    "λ": "lambda",
    "Λ": "Lambda",
    "±": "+/-",
    "×": "x",
    "·": ".",
    "–": "-",
    "—": "-",
    "→": "->",
    "≤": "<=",
    "‖": "||",
}


def _spell_what_cannot_be_shown() -> None:
    """Let an output that cannot hold δ or λ show their names; no run ends because of its table."""
    codecs.register_error("advreg.spell", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="advreg.spell")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_name, error.object[error.start : error.end])), error.end


def _name(character: str) -> str:
    """A character in ASCII: a Greek letter's name, a letter without its accent, or a question mark.

    Example:
        >>> _name("δ"), _name("é"), _name("→"), _name("語")
        ('delta', 'e', '->', '?')
    """
    if character in _SPELT:
        return _SPELT[character]
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(character, ""))
    if greek is not None:
        return greek[2].lower() if greek[1] == "SMALL" else greek[2].capitalize()
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or "?"


_DEATHS = {
    r"DataLoader worker .*(killed|exited)": "a process that loads data died",
    r"(?i)connection (closed|reset)|gloo|nccl": "another process of this training died",
}


def _of_another_process(error: Exception) -> Exception | None:
    """An error that tells of another process's death, in one sentence; none for other errors."""
    text = str(error).partition("\n")[0]
    for sign, what in _DEATHS.items():
        if isinstance(error, RuntimeError) and re.search(sign, text):
            remedy = "see its own error, free memory if the system killed it, then add --resume"
            return RuntimeError(f"{what}, so this one ends ({text}); {remedy}")
    return None


def _tell(error: Exception) -> None:
    if os.environ.get("ADVREG_DEBUG"):
        raise error
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
