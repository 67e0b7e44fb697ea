from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advreg.records import environment as environment_module
from advreg.records.environment import capture_environment, require_clean_tree
from advreg.records.sealed import RecordError


def test_the_environment_tells_versions_device_and_arguments_but_no_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sys, "argv", [str(tmp_path / "bin" / "advreg"), "train", f"--out={tmp_path / 'runs'}"]
    )
    environment = capture_environment(device="NVIDIA H100")
    assert environment["arguments"] == ["train", "--out=…/runs"]
    assert environment["device"] == "NVIDIA H100"
    assert environment["python"] == sys.version.split()[0]
    assert environment["packages"]["numpy"].count(".") == 2
    text = json.dumps(environment)
    for private in (str(tmp_path), str(Path.cwd()), sys.prefix, os.path.expanduser("~") + os.sep):
        assert private not in text


class Tree:
    """A git tree with one committed file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        self.write("README", "one")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "one")
        self.commit = self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        identity = ("user.name=a", "user.email=a@example.org", "commit.gpgsign=false")
        options = [part for value in identity for part in ("-c", value)]
        command = ["git", *options, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory, in no git tree; nothing comes from the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("ADVREG_COMMIT", "ADVREG_TREE", "ADVREG_ALLOW_DIRTY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def installed(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which also holds the environment that advreg is installed in."""
    place = outside / ".venv/lib/python3.11/site-packages/advreg/records/environment.py"
    monkeypatch.setattr(environment_module, "__file__", str(place))
    return outside


@pytest.fixture
def checkout(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A checkout of advreg, in another folder than the working directory."""
    root = outside / "clone"
    (root / "src/advreg/records").mkdir(parents=True)
    monkeypatch.setattr(
        environment_module, "__file__", str(root / "src/advreg/records/environment.py")
    )
    return Tree(root)


def state(tree: Tree, of: str, dirty: bool | None) -> dict[str, Any]:
    return {"of": of, "commit": tree.commit, "dirty": dirty}


def test_an_installed_advreg_tells_the_commit_of_the_users_project(installed: Path) -> None:
    assert capture_environment()["git"] is None
    tree = Tree(installed)
    assert capture_environment()["git"] == state(tree, "working directory", False)
    tree.write("notes", "left by a run")
    assert capture_environment()["git"] == state(tree, "working directory", False)
    tree.write("README", "two")
    assert capture_environment()["git"] == state(tree, "working directory", True)


def test_a_checkout_of_advreg_tells_its_own_commit(checkout: Tree) -> None:
    Tree(checkout.folder.parent)  # the user's project
    assert capture_environment()["git"] == state(checkout, "advreg", False)
    checkout.write("runs/record.json", "left by a run")
    assert capture_environment()["git"] == state(checkout, "advreg", False)
    checkout.write("README", "two")
    assert capture_environment()["git"] == state(checkout, "advreg", True)


def test_a_module_that_was_never_committed_makes_the_tree_dirty(checkout: Tree) -> None:
    checkout.write("src/advreg/methods/mine.py", "")
    assert capture_environment()["git"] == state(checkout, "advreg", True)


def test_a_commit_that_is_handed_over_comes_with_the_state_of_its_tree(
    checkout: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVREG_COMMIT", "abc1234")
    for told, dirty in (("", None), ("clean", False), ("dirty", True)):
        monkeypatch.setenv("ADVREG_TREE", told)
        assert capture_environment()["git"] == {
            "of": "ADVREG_COMMIT",
            "commit": "abc1234",
            "dirty": dirty,
        }
    monkeypatch.setenv("ADVREG_TREE", "tidy")
    with pytest.raises(
        RecordError,
        match="ADVREG_TREE must be clean or dirty, got 'tidy'; correct it or leave it out",
    ):
        capture_environment()


def test_code_that_no_commit_holds_is_refused_unless_it_is_allowed(
    checkout: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_clean_tree()
    checkout.write("README", "two")
    message = rf"checkout of advreg has changes that commit {checkout.commit[:9]} does not hold; "
    with pytest.raises(RecordError, match=message + "commit them, or run with --allow-dirty"):
        require_clean_tree()
    require_clean_tree(allow_dirty=True)
    monkeypatch.setenv("ADVREG_ALLOW_DIRTY", "1")
    require_clean_tree()


def test_a_dirty_tree_that_was_handed_over_is_refused_and_an_unknown_one_is_not(
    checkout: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVREG_COMMIT", "abc1234")
    require_clean_tree()
    monkeypatch.setenv("ADVREG_TREE", "dirty")
    with pytest.raises(RecordError, match="commit abc1234 does not hold"):
        require_clean_tree()


def test_changes_in_the_users_own_project_stop_no_run(installed: Path) -> None:
    require_clean_tree()
    Tree(installed).write("README", "two")
    require_clean_tree()


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture_environment()["git"] is None
