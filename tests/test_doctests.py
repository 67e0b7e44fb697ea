from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest
import torch

import advreg.core
import advreg.hf.data
import advreg.memory
import advreg.methods


def modules() -> list[ModuleType]:
    packages = (advreg.core, advreg.memory, advreg.methods)
    names = [
        info.name for package in packages for info in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    ]
    return [*map(importlib.import_module, names), *packages, advreg.hf.data]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_examples_are_found_at_all() -> None:
    finder = doctest.DocTestFinder()
    shown = {module.__name__ for module in modules() if any(test.examples for test in finder.find(module))}
    assert {"advreg.core.ascent", "advreg.core.schedule", "advreg.methods.base", "advreg.hf.data"} <= shown
