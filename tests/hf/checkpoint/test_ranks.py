"""Whose file is which in a checkpoint that many processes wrote."""

from pathlib import Path

import pytest

from advreg.hf.checkpoint.ranks import METHOD_FILE, method_file, method_files, remove_others


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_the_files_of_all_processes_are_found_in_their_order(tmp_path: Path) -> None:
    names = [method_file(rank, 12) for rank in range(12)]
    touch(tmp_path, *reversed(names), "model.safetensors", "advreg_method-x-of-2.safetensors")
    assert [path.name for path in method_files(tmp_path)] == names


def test_the_file_of_one_process_is_named_as_it_always_was(tmp_path: Path) -> None:
    assert method_file() == METHOD_FILE == "advreg_method.safetensors"
    touch(tmp_path, METHOD_FILE)
    assert method_files(tmp_path) == [tmp_path / METHOD_FILE]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_nothing_is_found_while_one_is_missing(missing: int, tmp_path: Path) -> None:
    touch(tmp_path, *(method_file(rank, 3) for rank in range(3) if rank != missing))
    assert method_files(tmp_path) == []
    assert method_files(tmp_path / "nowhere") == []


@pytest.mark.parametrize("world", [1, 2, 3])
def test_files_of_another_number_of_processes_are_removed_and_no_others(
    world: int, tmp_path: Path
) -> None:
    touch(tmp_path, "model.safetensors", "advreg_methods.safetensors")
    touch(tmp_path, *(method_file(rank, many) for many in (1, 2, 3) for rank in range(many)))
    remove_others(tmp_path, world)
    kept = {method_file(rank, world) for rank in range(world)}
    assert {path.name for path in tmp_path.iterdir()} == kept | {
        "model.safetensors",
        "advreg_methods.safetensors",
    }
    assert [path.name for path in method_files(tmp_path)] == sorted(kept)
