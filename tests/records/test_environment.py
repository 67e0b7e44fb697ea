from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from advreg.records import environment as environment_module
from advreg.records.environment import capture_environment
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


def test_the_environment_knows_the_commit_and_whether_files_were_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    installed = tmp_path / "site-packages" / "advreg" / "records" / "environment.py"
    monkeypatch.setattr(environment_module, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert capture_environment()["git"] is None
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert capture_environment()["git"] == {
        "of": "working directory",
        "commit": commit,
        "dirty": False,
    }
    (tmp_path / "file").write_text("two")
    assert capture_environment()["git"] == {
        "of": "working directory",
        "commit": commit,
        "dirty": True,
    }
    monkeypatch.setenv("ADVREG_COMMIT", "abc1234")
    assert capture_environment()["git"] == {
        "of": "ADVREG_COMMIT",
        "commit": "abc1234",
        "dirty": None,
    }
    for state, dirty in (("clean", False), ("dirty", True)):
        monkeypatch.setenv("ADVREG_TREE", state)
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


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture_environment()["git"] is None
