"""What processes that train together keep apart: the files of their memories in a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

METHOD_FILE = "advreg_method.safetensors"
_ONE_OF_MANY = re.compile(r"advreg_method-(\d+)-of-(\d+)\.safetensors")


def method_file(rank: int = 0, world: int = 1) -> str:
    """The file of one process; its name says how many there were.

    Example:
        >>> method_file(), method_file(1, 4)
        ('advreg_method.safetensors', 'advreg_method-1-of-4.safetensors')
    """
    return METHOD_FILE if world == 1 else f"advreg_method-{rank}-of-{world}.safetensors"


def method_files(folder: Path) -> list[Path]:
    """The files of all processes that saved into a folder, in their order; none if one of them is missing."""
    worlds = {int(found[2]) for path in folder.glob("*") if (found := _ONE_OF_MANY.fullmatch(path.name))}
    for world in sorted({1} | worlds):
        files = [folder / method_file(rank, world) for rank in range(world)]
        if all(file.is_file() for file in files):
            return files
    return []


def remove_others(folder: Path, world: int) -> None:
    """Remove the files of a run with another number of processes that saved into the same folder."""
    for path in folder.glob("advreg_method*.safetensors"):
        found = _ONE_OF_MANY.fullmatch(path.name)
        if (found is not None or path.name == METHOD_FILE) and world != (int(found[2]) if found else 1):
            path.unlink(missing_ok=True)
