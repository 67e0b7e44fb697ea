"""Where a run was made: versions, commit, machine and command line; no host, user or path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from advreg.records.paths import without_paths
from advreg.records.sealed import RecordError, without_surrogates

_TREE_STATES = {"": None, "clean": False, "dirty": True}  # of ADVREG_TREE
_OWN, _ELSEWHERE = "advreg", "working directory"
_PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")


class GitInfo(TypedDict, total=False):
    """A commit, and whether its tree was changed (null: unknown); ``of``: whose commit it is."""

    of: str
    commit: str
    dirty: bool | None


class EnvironmentInfo(TypedDict, total=False):
    """Versions, commit, machine and command line, as :func:`capture_environment` gives them."""

    advreg: str | None
    git: GitInfo | None
    python: str
    packages: dict[str, str]
    platform: str
    cpu_count: int | None
    device: str | None
    arguments: list[str]


def capture_environment(device: str | None = None) -> EnvironmentInfo:
    """Versions, commit, machine and command line, with paths shortened.

    Args:
        device: name of the accelerator; this module does not import torch.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "advreg": _version("advreg"),
        "git": _git_state(),
        "python": platform.python_version(),
        "packages": {name: version for name, version in versions.items() if version is not None},
        # the kernel's release may name the machine's owner
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "device": device,
        "arguments": [without_paths(without_surrogates(argument)) for argument in sys.argv[1:]],
    }


def require_clean_tree(allow_dirty: bool = False) -> None:
    """Refuse to run code that no commit holds, because its record could not be reproduced.

    This concerns advreg's own checkout, and the commit that ``ADVREG_COMMIT`` names. An installed
    advreg has no tree, and changes in the user's own project do not matter.

    Args:
        allow_dirty: run anyway; the record says that the tree was dirty. ``ADVREG_ALLOW_DIRTY=1``
            says so for every run.
    """
    git = None if allow_dirty or os.environ.get("ADVREG_ALLOW_DIRTY") == "1" else _git_state()
    if git is not None and git["of"] != _ELSEWHERE and git["dirty"]:
        raise RecordError(
            f"has changes that commit {git['commit'][:9]} does not hold",
            "commit them, or run with --allow-dirty, which the record will say",
            field="the checkout of advreg",
        )


def now() -> str:
    """The time in UTC, to the second, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state() -> GitInfo | None:
    """Commit and dirty flag of advreg's own checkout, or of the working directory where advreg was
    installed or copied.

    ``ADVREG_COMMIT`` names the commit of a copy without history, ``ADVREG_TREE`` the state of the
    tree that was copied: ``clean`` or ``dirty``.
    """
    if commit := os.environ.get("ADVREG_COMMIT"):
        tree = os.environ.get("ADVREG_TREE", "")
        if tree not in _TREE_STATES:
            problem = f"must be clean or dirty, got {tree!r}"
            raise RecordError(problem, "correct it or leave it out", field="ADVREG_TREE")
        return {"of": "ADVREG_COMMIT", "commit": commit, "dirty": _TREE_STATES[tree]}
    package = Path(__file__).resolve().parents[1]
    if (package.parents[1] / ".git").exists():
        # untracked files count only where the code is: every run leaves some elsewhere
        return _state(_OWN, package, ["--untracked-files=no"], ["--untracked-files=all", "."])
    return _state(_ELSEWHERE, Path.cwd(), ["--untracked-files=no"])


def _state(of: str, folder: Path, *scopes: list[str]) -> GitInfo | None:
    if (commit := _git(folder, "rev-parse", "HEAD")) is None:
        return None
    changes = [_git(folder, "status", "--porcelain", *scope) for scope in scopes]
    return {"of": of, "commit": commit, "dirty": None if None in changes else any(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
