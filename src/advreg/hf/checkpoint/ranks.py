"""The files of several processes in a checkpoint, and decisions that one process makes for all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as distributed

T = TypeVar("T")

METHOD_FILE = "advreg_method.safetensors"
_ONE_OF_MANY = re.compile(r"advreg_method-(\d+)-of-(\d+)\.safetensors")


# ---- files of a checkpoint


def method_file(rank: int = 0, world: int = 1) -> str:
    """The file of one process; its name has the number of processes.

    Example:
        >>> method_file(), method_file(1, 4)
        ('advreg_method.safetensors', 'advreg_method-1-of-4.safetensors')
    """
    return METHOD_FILE if world == 1 else f"advreg_method-{rank}-of-{world}.safetensors"


def method_files(folder: Path) -> list[Path]:
    """The files of all processes that saved into a folder, in their order; none if one of them is
    missing.
    """
    worlds = {
        int(found[2]) for path in folder.glob("*") if (found := _ONE_OF_MANY.fullmatch(path.name))
    }
    for world in sorted({1} | worlds):
        files = [folder / method_file(rank, world) for rank in range(world)]
        if all(file.is_file() for file in files):
            return files
    return []


def remove_others(folder: Path, world: int) -> None:
    """Remove the files of a run with another number of processes that saved into the same
    folder.
    """
    for path in folder.glob("advreg_method*.safetensors"):
        found = _ONE_OF_MANY.fullmatch(path.name)
        if (found is not None or path.name == METHOD_FILE) and world != (
            int(found[2]) if found else 1
        ):
            path.unlink(missing_ok=True)


# ---- one for all


def process_count() -> int:
    """The number of processes that torchrun or accelerate started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_first_process() -> bool:
    """Whether this process prints and writes records."""
    return int(os.environ.get("RANK", 0)) == 0


def first_decides(decide: Callable[[], T]) -> T:
    """The decision of the first process, in all processes; its error is raised in all of them.
    Files may change right after the decision, so the others must not look themselves.
    """
    if process_count() == 1:
        return decide()
    box: list[Any] = [None, None]
    if is_first_process():
        try:
            box[0] = decide()
        except Exception as error:
            box[1] = error
    distributed.broadcast_object_list(box)
    if box[1] is not None:
        raise box[1]
    decided: T = box[0]
    return decided
