"""A page of results and its pictures: written, or compared with what is there."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def keep(about: str, page: Path, text: str, draw: Callable[[Path], object] = lambda folder: None) -> None:
    """Write a page and its pictures; asked to ``--check``, say instead which of them are not up to date.

    Args:
        about: what ``--help`` says.
        page: its file; pictures lie beside it.
        text: what it should say.
        draw: writes all pictures into a folder.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    if parser.parse_args().check:
        old = differing(page, text, draw)
        sys.exit(f"not up to date: {', '.join(old)}" if old else 0)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    draw(page.parent)


def differing(page: Path, text: str, draw: Callable[[Path], object]) -> list[str]:
    """Names of the files that are not there, or are not what they should be."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        fresh = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    fresh[page.name] = text.encode()
    return [name for name, content in fresh.items() if _content(page.with_name(name)) != content]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
