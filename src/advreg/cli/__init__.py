"""The command ``advreg``: thin layers of parse, call, print."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point: errors worded for users are printed without a traceback, unless ADVREG_DEBUG is
    set.
    """
    try:
        from advreg.cli.app import app, user_errors
    except KeyboardInterrupt:  # the import takes seconds, and nothing was begun
        sys.exit(130)
    try:
        app()
    except (
        Exception
    ) as error:  # not "except user_errors()": every way out would import transformers for it
        if os.environ.get("ADVREG_DEBUG") or not isinstance(error, user_errors()):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
