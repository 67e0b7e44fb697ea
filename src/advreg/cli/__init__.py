"""The command ``advreg``: thin layers of parse, call, print."""

from __future__ import annotations

import os
import sys

USER_ERRORS = (OSError, ValueError, FloatingPointError)
"""Errors whose text is meant for users, such as most of advreg's own."""


def main() -> None:
    """Entry point: errors worded for users are printed without a traceback, unless ADVREG_DEBUG is
    set.
    """
    try:
        from advreg.cli.app import app, user_errors
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app()
    except USER_ERRORS as error:
        _tell(error)
    except Exception as error:  # only then, for user_errors() imports torch
        if not isinstance(error, user_errors()):
            raise
        _tell(error)


def _tell(error: Exception) -> None:
    if os.environ.get("ADVREG_DEBUG"):
        raise error
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
