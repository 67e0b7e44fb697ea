"""The lowest versions that are admitted are the ones that `make floor` tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAME_AND_LOWEST = re.compile(r"([a-z0-9-]+)(?:\[([a-z,]+)\])?(?:>=([0-9.]+))?")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return found


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints-floor.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pins.items()}


def lowest(requirements: list[str]) -> dict[str, str]:
    """Names and lowest versions; of an extra of our own, those of what it stands for."""
    extras, found = project()["optional-dependencies"], dict[str, str]()
    for requirement in requirements:
        match = NAME_AND_LOWEST.match(requirement)
        assert match is not None, requirement
        name, inner, version = match.groups()
        if name == "advreg":
            found |= lowest([each for extra in inner.split(",") for each in extras[extra]])
        else:
            found[name] = version
    return found


def numbers(version: str) -> tuple[int, ...]:
    """1.7 and 1.7.0 are the same."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (4 - len(parts)))


def test_the_lowest_versions_are_those_of_the_floor() -> None:
    pins = pinned()
    admitted = lowest(project()["dependencies"] + ["advreg[all]"])
    del admitted["torch"]  # whose older CPU builds are not at hand
    assert len(admitted) >= 15
    assert {name: numbers(pins[name]) for name in admitted} == {
        name: numbers(v) for name, v in admitted.items()
    }


def test_the_floor_is_tested_with_the_torch_of_all_other_tests() -> None:
    assert f"torch=={pinned()['torch']}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_development_asks_for_no_other_lowest_versions_than_the_extras() -> None:
    extras = project()["optional-dependencies"]
    given = lowest(extras["all"])
    asked = lowest(extras["dev"])
    assert {name: version for name, version in asked.items() if name in given} == given


def test_readers_are_given_the_lowest_versions() -> None:
    admitted = lowest(project()["dependencies"])
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for name in ("torch", "transformers", "accelerate"):
            assert f"{name} ≥ {admitted[name]}" in text, (
                f"{page} must say {name} ≥ {admitted[name]}"
            )
        assert f"Python {project()['requires-python'].replace('>=', '≥ ')}" in text
