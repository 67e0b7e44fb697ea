from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import advreg
from advreg import functional
from observe import Padded, features_of
from tiny_models import tiny, tiny_batch


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(advreg.__path__, "advreg.")
    return [
        importlib.import_module(module.name)
        for module in found
        if not module.name.endswith("__main__")
    ]


def has_examples(module: ModuleType) -> bool:
    return any(test.examples for test in doctest.DocTestFinder().find(module))


def given(folder: Path) -> dict[str, Any]:
    """What examples may use: a tiny classifier, data for it, and what a script has beside them."""
    torch.manual_seed(0)
    model, samples = tiny("bert", dropout=0.1), features_of(tiny_batch("bert", batch=8))
    collate = Padded(model.config.pad_token_id)
    loader: Any = DataLoader(samples, batch_size=4, collate_fn=collate)  # type: ignore[arg-type]
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    return {
        "torch": torch,
        "model": model,
        "batch": next(iter(loader)),
        "samples": samples,
        "collate": collate,
        "loader": loader,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "arguments": {**quiet, "output_dir": str(folder), "max_steps": 1},
    }


@pytest.mark.parametrize(
    "module", filter(has_examples, modules()), ids=lambda module: module.__name__
)
def test_the_examples_in_docstrings_hold(module: ModuleType, tmp_path: Path) -> None:
    assert doctest.testmod(module, extraglobs=given(tmp_path)).failed == 0


@pytest.mark.parametrize("name", [*advreg.__all__, *functional.__all__])
def test_every_public_name_has_an_example(name: str) -> None:
    home = functional if name in functional.__all__ else advreg
    assert re.search(r"\n\s+Example:\n\s+>>> ", getattr(home, name).__doc__)


def test_examples_are_found_at_all() -> None:
    shown = {module.__name__ for module in modules() if has_examples(module)}
    assert {
        "advreg.core.ascent",
        "advreg.methods.base",
        "advreg.hf.data",
        "advreg.lab.report.labels",
    } <= shown
