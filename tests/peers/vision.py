"""Import torchvision beside a torch it was not built for."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import Any

import torch

_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_declared: list[Any] = []  # a library that is collected takes its operators with it


def import_torchvision() -> None:
    """Import torchvision, if installed, so that transformers finds it.

    The wheel on PyPI is built for CUDA, and its operators cannot be loaded by a torch for CPUs. At
    import only their declarations are missing, and image processors call none of them: so declare
    them.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    while (missing := _missing_operator()) is not None:
        if not _declared:
            _declared.append(torch.library.Library("torchvision", "DEF"))
        _declared[0].define(f"{missing}(Tensor boxes, Tensor scores, float threshold) -> Tensor")


def _missing_operator() -> str | None:
    """The operator that the import failed for, or None if it succeeded."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        return found[1]
    return None
