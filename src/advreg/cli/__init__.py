"""The command ``advreg``: thin layers of parse, call, print."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point: errors worded for users are printed without a traceback, unless ADVREG_DEBUG is set."""
    from advreg.cli.app import app, user_errors

    try:
        app()
    except KeyboardInterrupt:
        print(
            "interrupted; finished steps are in the last checkpoint. Go on with the same command and --resume",
            file=sys.stderr,
        )
        sys.exit(130)
    except user_errors() as error:
        if os.environ.get("ADVREG_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
