from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import advreg.bench.figures
import advreg.bench.record
import advreg.bench.settings
import advreg.cli.bench


@pytest.mark.parametrize(
    "module",
    [advreg.bench.figures, advreg.bench.record, advreg.bench.settings, advreg.cli.bench],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0
