"""Small files of parallel text."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, **files: str) -> Path:
    """Files named split__language."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder
