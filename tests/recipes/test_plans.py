from __future__ import annotations

from pathlib import Path

import pytest

from advreg.recipes.plans import agree, finished, has_runs, writable
from advreg.recipes.settings import SettingsError

FACTS = {"epochs": 3, "sizes": (1, 2)}


def test_a_run_goes_on_with_the_facts_it_was_started_with(tmp_path: Path) -> None:
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=False)
    assert has_runs(tmp_path)
    half = tmp_path / "arch-seed0" / ".record.json.0a1b2c3d.tmp"
    half.write_text("{")  # as a kill leaves it
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=True)
    assert not half.exists()
    told = r"arch-seed0 cannot go on, .*: epochs was 3, is 4\. Resume with the same .*; the run is in '.*arch-seed0'$"
    with pytest.raises(SettingsError, match=told):
        agree("arch-seed0", tmp_path / "arch-seed0", {**FACTS, "epochs": 4}, resume=True)


def test_a_run_without_a_record_is_not_finished(tmp_path: Path) -> None:
    assert not has_runs(tmp_path)
    assert finished("a", tmp_path, FACTS) is None


def test_a_folder_that_can_be_made_is_not_made_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writable(tmp_path / "runs" / "a") == tmp_path / "runs" / "a"
    monkeypatch.chdir(tmp_path)
    assert writable(Path("runs/a")) == Path("runs/a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(SettingsError, match=r"folder .*, got '.*/notes/a/b': '.*/notes' is a file; choose"):
        writable(tmp_path / "notes" / "a" / "b")


def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(SettingsError, match=rf"got '.*/new': '{tmp_path}' is a folder without the right to write"):
        writable(tmp_path / "new")
