from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest
import torch

import advreg


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(advreg.__path__, "advreg.")
    return [
        importlib.import_module(module.name)
        for module in found
        if not module.name.endswith("__main__")
    ]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_examples_are_found_at_all() -> None:
    finder = doctest.DocTestFinder()
    shown = {
        module.__name__
        for module in modules()
        if any(test.examples for test in finder.find(module))
    }
    assert {
        "advreg.core.ascent",
        "advreg.methods.base",
        "advreg.hf.data",
        "advreg.lab.report.labels",
    } <= shown
