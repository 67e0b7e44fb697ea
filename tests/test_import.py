from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

import advreg

ALLOWED_SECONDS = 0.3
# One process, so that both imports meet the same caches and the same load. CPU time: other
# processes do not count.
MEASURE = """
import json, sys, time
start = time.process_time()
import torch
between = time.process_time()
import advreg
public = time.process_time()
import advreg.methods
print(json.dumps({
    "torch": between - start,
    "advreg": public - between,
    "methods": time.process_time() - public,
    "loaded": [name for name in ("transformers", "rich", "typer", "advreg.hf", "advreg.cli") if name in sys.modules],
}))
"""


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    runs = [
        subprocess.run(
            [sys.executable, "-c", MEASURE], capture_output=True, check=True, timeout=120
        )
        for _ in "ab"
    ]
    return [json.loads(run.stdout) for run in runs]


def test_importing_advreg_costs_little_more_than_torch(measured: list[dict[str, Any]]) -> None:
    assert min(run["advreg"] for run in measured) < 0.05
    assert min(run["advreg"] + run["methods"] for run in measured) < ALLOWED_SECONDS


def test_importing_the_methods_does_not_import_transformers(measured: list[dict[str, Any]]) -> None:
    assert [run["loaded"] for run in measured] == [[], []]


@pytest.mark.parametrize("name", advreg.__all__)
def test_every_public_name_resolves_to_what_its_home_calls_so(name: str) -> None:
    found = getattr(advreg, name)
    assert found.__name__ == name
    assert found.__module__.startswith("advreg.")
    assert getattr(importlib.import_module(found.__module__), name) is found


def test_dir_lists_the_public_names_before_they_are_loaded() -> None:
    assert set(advreg.__all__) | {"__version__"} <= set(dir(advreg))
    assert dir(advreg) == sorted(dir(advreg))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'advreg' has no attribute 'Arhc'"):
        _ = advreg.Arhc  # type: ignore[attr-defined]


def test_the_version_is_the_installed_ones() -> None:
    from importlib.metadata import version

    assert advreg.__version__ == version("advreg")
