from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from advreg.lab.kinds import final_model
from advreg.lab.kinds.final_model import model_flaw, save_model, spare_folders, take_from_spare

Write = Callable[[Path], None]


def weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def full(*full_disks: Path, after: Write = weights) -> Write:
    """Writes a part of a model, and the rest where there is room."""

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        if any(folder.is_relative_to(disk) for disk in full_disks):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        after(folder)

    return write


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "arch-seed0"


@pytest.fixture
def spares(run: Path, tmp_path: Path) -> list[Path]:
    return [tmp_path / "spare", tmp_path / "temporary"]


def test_a_model_is_synced_before_it_gets_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    rename = os.rename

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def named(old: Path, new: Path) -> None:
        staged = [path for path in Path(old).rglob("*") if path.is_file()]
        assert {*map(str, staged), str(old)} <= set(synced)
        rename(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", named)
    saved = save_model(full(), run, [])
    assert saved.folder == run / "model"
    assert saved.failure is None
    assert str(run) in synced  # the new name itself
    assert tree(run) == {"model/config.json", "model/model.safetensors"}
    assert model_flaw(run, saved.files) is None


def test_a_failed_save_leaves_the_model_that_was_there(run: Path) -> None:
    first = save_model(full(), run, [])
    second = save_model(full(run), run, [])
    assert second.folder is None
    assert "No space left" in str(second.failure)
    assert model_flaw(run, first.files) is None
    assert not (run / "_saving").exists()


def test_a_model_goes_to_the_first_spare_folder_that_takes_it_and_back(
    run: Path, spares: list[Path]
) -> None:
    saved = save_model(full(run, spares[0]), run, spares)
    assert saved.folder == spares[1] / "model"
    assert str(run) in str(saved.failure)
    assert (spares[1].stat().st_mode & 0o777) == 0o700
    assert model_flaw(run, saved.files) == "its model is missing"
    take_from_spare(run, spares, saved.files)
    assert model_flaw(run, saved.files) is None
    assert not spares[1].exists()


def test_a_spare_model_that_changed_is_not_taken(run: Path, spares: list[Path]) -> None:
    saved = save_model(full(run), run, spares)
    (spares[0] / "model" / "model.safetensors").write_bytes(b"another")
    take_from_spare(run, spares, saved.files)
    assert not (run / "model").exists()


def test_a_spare_folder_of_another_user_is_not_used(
    run: Path, spares: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spares[0].mkdir()
    monkeypatch.setattr(os, "getuid", lambda: spares[0].stat().st_uid + 1)
    assert save_model(full(run), run, spares[:1]).folder is None
    assert not any(spares[0].iterdir())


def test_spare_folders_are_found_again_and_differ_between_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = spare_folders(Path("a/arch-seed0"), Path("/spare"))
    assert one == spare_folders(tmp_path / "a" / "arch-seed0", Path("/spare"))
    assert one[0].parent == Path("/spare")
    assert not set(one) & set(spare_folders(Path("b/arch-seed0"), Path("/spare")))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda model: os.truncate(model / "model.safetensors", 0), "model.safetensors is not"),
        (lambda model: (model / "config.json").unlink(), "config.json cannot be read"),
        (lambda model: [path.unlink() for path in model.iterdir()], "its model is missing"),
    ],
)
def test_a_flaw_names_the_file(run: Path, damage: Write, told: str) -> None:
    saved = save_model(full(), run, [])
    damage(run / "model")
    assert told in str(model_flaw(run, saved.files))
    assert model_flaw(run, {}) == "its model was not saved"


def test_an_error_without_a_file_gets_its_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    saved = save_model(full(), run, [])
    assert saved.failure is not None
    assert "config.json" in saved.failure
    assert final_model.MODEL_FOLDER not in {path.name for path in run.iterdir()}
