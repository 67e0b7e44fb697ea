"""Names that a suite imports and the installed library does not have: its tests are of another
version.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Absent:
    """Stands in for a function or class; a test that calls it is skipped.

    Args:
        name: what it stands in for.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        pytest.skip(f"the installed library has no {self.name}")


def imported(files: Iterable[Path], package: str) -> Iterator[tuple[str, str]]:
    """Module and name of what files import from a package."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and (node.module or "").split(".")[0] == package
            ):
                yield from ((node.module or "", alias.name) for alias in node.names)


def fill(files: Iterable[Path], package: str) -> list[str]:
    """Put a stand-in where a name is absent, so that the rest of a file can be imported; return
    those names.
    """
    absent = [pair for pair in dict.fromkeys(imported(files, package)) if _is_absent(*pair)]
    for module, name in absent:
        # whether something optional is installed is asked when a file is imported
        stand_in = (lambda: False) if name.startswith("is_") else Absent(f"{module}.{name}")
        setattr(importlib.import_module(module), name, stand_in)
    return [f"{module}.{name}" for module, name in absent]


def _is_absent(module_name: str, name: str) -> bool:
    """Whether a module is there without the name; a name that lacks its own dependencies is not
    absent.
    """
    try:
        module = importlib.import_module(module_name)
        if hasattr(module, name):
            return False
    except ImportError:
        return False
    return (
        importlib.util.find_spec(f"{module_name}.{name}") is None
        if hasattr(module, "__path__")
        else True
    )
