"""Paths in records: shortened when a record is written, confined to a folder when one is read."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath, PureWindowsPath

# not inside a relative path, a URL or a path already shortened
_START = r"(?:(?<![\w/.…~])|(?<=file://))"
_PART = r"[^\s…/:;,'\"()<>|\[\]{}=]+"
_POSIX_PATH = re.compile(rf"{_START}/{_PART}(?:/+{_PART})*/+({_PART})/*")
_WINDOWS_PATH = re.compile(r"(?<![\w/…])[A-Za-z]:\\(?:[^\\\s…:;,'\"<>|]+\\)*([^\\\s…:;,'\"<>|]*)")


def without_paths(text: str) -> str:
    """Shorten absolute paths to ``…/`` and their last part. Doing it twice changes nothing.

    Example:
        >>> without_paths("--data=/srv/glue/sst2.tsv")
        '--data=…/sst2.tsv'
    """
    home = os.path.expanduser("~")
    if len(home) > 1:  # first, and by name: it may hold spaces, where the patterns stop
        text = re.sub(rf"{_START}{re.escape(home)}(?![\w.-])", "/~", text)
        text = re.sub(rf"{_START}/~(?!/)", "…/~", text)
    return _WINDOWS_PATH.sub(r"…/\1", _POSIX_PATH.sub(r"…/\1", text))


def stays_inside(name: str) -> bool:
    """Whether a path read from a file stays in the folder that it is relative to."""
    return not any(
        kind(name).is_absolute() or ".." in kind(name).parts
        for kind in (PurePosixPath, PureWindowsPath)
    )
