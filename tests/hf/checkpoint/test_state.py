"""A method's file in a checkpoint, and which checkpoint of a run is whole."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.hf.checkpoint.manifest import MANIFEST_FILE, Manifest, seal
from advreg.hf.checkpoint.ranks import method_file
from advreg.hf.checkpoint.state import (
    METHOD_FILE,
    CheckpointError,
    checkpoints,
    last_whole_checkpoint,
    load_method,
    require_whole,
    rotate,
    save_method,
)
from advreg.memory.memory import Memory, MemoryState
from advreg.methods import Standard
from advreg.methods.base import option
from advreg.records.sealed import save_as


class Kept(Memory):
    """One state; of several it keeps the first part of each."""

    def __init__(self) -> None:
        self.content = MemoryState()

    def state(self) -> MemoryState:
        return self.content

    def load(self, states: Iterable[MemoryState], epoch: float = 0.0) -> None:
        first, *others = states
        self.content = first
        if others:
            parts = [state.tensors["mine"] for state in (first, *others)]
            self.content = MemoryState({"all": torch.cat(parts)}, {"dealt": "anew"})

    @property
    def bytes(self) -> int:
        return sum(value.nbytes for value in self.content.tensors.values())


@dataclass
class Remembering(Standard):
    """Standard training with something to remember."""

    info = replace(Standard.info, name="remembering")
    size: float = option(1.0, "a setting")
    kinds: tuple[int, ...] = option((1, 2), "a setting that JSON turns into a list")
    memory: Kept = field(default_factory=Kept, init=False)

    @property
    def kept(self) -> MemoryState:
        return self.memory.content


CPU = torch.device("cpu")


def test_tensors_facts_and_tally_come_back(tmp_path: Path) -> None:
    method = Remembering()
    tensors = {
        "rows": torch.randn(5, 3, dtype=torch.float64).T,  # not contiguous
        "half": torch.randn(4).half(),
        "ids": torch.arange(3),
        "none": torch.empty(0, 7),
        "flags": torch.tensor([True, False]),
    }
    method.memory.content = MemoryState(tensors, {"fingerprint": "äbc δ"})
    save_method(method, tmp_path, {"forward": 12.5, "steps": 3})
    other = Remembering()
    assert load_method(other, tmp_path) == {"forward": 12.5, "steps": 3}
    assert other.kept.facts == {"fingerprint": "äbc δ"}
    assert set(other.kept.tensors) == set(tensors)
    for name, value in tensors.items():
        assert other.kept.tensors[name].dtype == value.dtype
        assert torch.equal(other.kept.tensors[name], value)


def test_a_method_that_remembers_nothing_has_a_file_too(tmp_path: Path) -> None:
    save_method(Standard(), tmp_path)
    assert load_method(Standard(), tmp_path) == {}


def test_a_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"it holds no trainer_state\.json; it is no checkpoint"
    ):
        load_method(Standard(), tmp_path)
    seal(tmp_path, "one")
    with pytest.raises(CheckpointError, match=f"holds no {METHOD_FILE}, as with save_only_model"):
        load_method(Remembering(), tmp_path)


def test_another_method_or_other_options_are_refused_naming_what_changed(tmp_path: Path) -> None:
    save_method(Remembering(size=0.5), tmp_path)
    with pytest.raises(
        CheckpointError, match="was trained with remembering, this run with standard"
    ):
        load_method(Standard(), tmp_path)
    changed = Remembering(size=0.25, kinds=(3,))
    with pytest.raises(
        CheckpointError,
        match=r"remembering differ .*: size 0\.5 → 0\.25, kinds \[1, 2\] → \[3\]; resume",
    ):
        load_method(changed, tmp_path)
    assert changed.kept == MemoryState()
    load_method(Remembering(size=0.5), tmp_path)


def test_an_option_that_did_not_exist_then_may_only_have_its_default(tmp_path: Path) -> None:
    @dataclass
    class Younger(Remembering):
        sizes: tuple[int, ...] = option((4, 5), "a setting that came later")

    save_method(Remembering(size=0.5), tmp_path)
    load_method(Younger(size=0.5), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"remembering differ .*: sizes \[4, 5\] → \[6\]; resume"
    ):
        load_method(Younger(size=0.5, sizes=(6,)), tmp_path)


def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / METHOD_FILE).write_bytes(b"\xff" * 100)
    with pytest.raises(
        CheckpointError, match=rf"{METHOD_FILE} cannot be read \(.*\); resume from an earlier"
    ):
        load_method(Standard(), tmp_path)


# ---- which checkpoint is whole


def checkpoint(
    run: Path, step: int, token: str = "one", method: bool = True, state: bool = True
) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "deep").mkdir(parents=True)
    if method:
        save_method(Standard(), folder)
    if state:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "deep" / "weights.bin").write_bytes(bytes(range(256)) + str(step).encode())
    seal(folder, token)
    return folder


def test_the_last_is_the_largest_number_and_not_the_last_word(tmp_path: Path) -> None:
    for step in (9, 10, 100, 20):
        checkpoint(tmp_path, step)
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def cut(folder: Path) -> None:
    path = folder / "deep" / "weights.bin"
    path.write_bytes(path.read_bytes()[:100])


def flip(folder: Path) -> None:
    path = folder / METHOD_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"X")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (
        lambda folder: (folder / MANIFEST_FILE).unlink(),
        f"{MANIFEST_FILE} is missing",
    ),
    "empty manifest": (
        lambda folder: (folder / MANIFEST_FILE).write_text(""),
        f"{MANIFEST_FILE} cannot be read",
    ),
    "edited manifest": (
        lambda folder: (folder / MANIFEST_FILE).write_text(
            (folder / MANIFEST_FILE).read_text().replace("weights", "weight_")
        ),
        f"{MANIFEST_FILE} cannot be read",
    ),
    "file gone": (lambda folder: (folder / METHOD_FILE).unlink(), f"{METHOD_FILE} cannot be read"),
    "file cut": (cut, r"deep/weights.bin has 100 bytes instead of 25[78]"),
    "bit flipped": (flip, f"{METHOD_FILE} is not what was saved"),
    "path leaves the folder": (
        lambda folder: save_as(
            folder / MANIFEST_FILE,
            Manifest(run="one", sizes={"../../x": 1}, digests={"../../x": "0"}),
        ),
        "names '../../x', which is not in the folder",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_warning_names_the_file(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage, told = DAMAGES[kind]
    checkpoint(tmp_path, 5)
    whole = checkpoint(tmp_path, 8)
    for step in (12, 13):
        damage(checkpoint(tmp_path, step))
    assert last_whole_checkpoint(tmp_path) == whole
    assert [record.getMessage()[:25] for record in caplog.records] == [
        f"checkpoint-{step} is not used" for step in (13, 12)
    ]
    assert re.search(told, caplog.records[0].getMessage())
    with pytest.raises(CheckpointError, match=f"valid checkpoint at .*checkpoint-13: .*{told}"):
        require_whole(tmp_path / "checkpoint-13")
    require_whole(whole)


def test_a_checkpoint_of_another_run_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder belongs to the run that sealed a checkpoint last, whatever the steps."""
    other = checkpoint(tmp_path, 6, "other")
    assert last_whole_checkpoint(tmp_path) == other
    mine = checkpoint(tmp_path, 3, "mine")
    assert last_whole_checkpoint(tmp_path) == mine
    assert "checkpoint-6 is not used: it belongs to another run" in caplog.text


@pytest.mark.parametrize("lacks", ["method", "state"])
def test_a_whole_checkpoint_that_nothing_can_go_on_from_is_passed_over(
    lacks: str, tmp_path: Path
) -> None:
    usable = checkpoint(tmp_path, 3)
    checkpoint(tmp_path, 6, **{lacks: False})
    assert last_whole_checkpoint(tmp_path) == usable


def test_a_method_file_of_each_process_will_do(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 3, method=False)
    for rank in (0, 1):
        (folder / method_file(rank, 2)).write_bytes(b"rows")
    seal(folder, "one")
    assert last_whole_checkpoint(tmp_path) == folder
    (folder / method_file(1, 2)).write_bytes(b"rowz")
    assert last_whole_checkpoint(tmp_path) is None


def test_other_folders_and_files_are_not_checkpoints(tmp_path: Path) -> None:
    checkpoint(tmp_path, 7).rename(tmp_path / "checkpoint-7-old")
    checkpoint(tmp_path, 7).rename(tmp_path / "checkpoint-best")
    (tmp_path / "checkpoint-9").write_text("a file")
    assert last_whole_checkpoint(tmp_path) is None
    assert last_whole_checkpoint(tmp_path / "nowhere") is None


# ---- many processes


def saved_by(world: int, folder: Path) -> None:
    for rank in reversed(range(world)):
        method = Remembering()
        method.memory.content = MemoryState({"mine": torch.tensor([rank])}, {"rank": str(rank)})
        save_method(method, folder, {"seconds": rank + 0.5}, rank, world)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_as_many_processes_each_get_back_what_was_theirs(world: int, tmp_path: Path) -> None:
    saved_by(world, tmp_path / "checkpoint-1")
    for rank in range(world):
        method = Remembering()
        assert load_method(method, tmp_path / "checkpoint-1", rank, world) == {
            "seconds": rank + 0.5
        }
        assert method.kept.tensors["mine"].tolist() == [rank]
        assert method.kept.facts == {"rank": str(rank)}


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 3)])
def test_another_number_of_processes_is_dealt_what_all_had(
    before: int, after: int, tmp_path: Path
) -> None:
    saved_by(before, tmp_path)
    for rank in range(after):
        method = Remembering()
        assert load_method(method, tmp_path, rank, after) == {"seconds": 0.5}
        one = before == 1  # a single state has nothing to be joined with
        assert method.kept.tensors["mine" if one else "all"].tolist() == list(range(before))
        assert method.kept.facts == ({"rank": "0"} if one else {"dealt": "anew"})


def test_a_save_by_another_number_of_processes_takes_the_place_of_the_last(tmp_path: Path) -> None:
    for world in (3, 1, 2):
        saved_by(world, tmp_path)
        assert len(list(tmp_path.glob("advreg_method*"))) == world


def test_a_checkpoint_lacking_a_process_s_file_is_not_whole(tmp_path: Path) -> None:
    for step in (4, 8):
        saved_by(2, tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
        seal(tmp_path / f"checkpoint-{step}", "a run")
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    (tmp_path / "checkpoint-8" / method_file(1, 2)).unlink()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    with pytest.raises(CheckpointError, match=f"checkpoint-8 holds no {METHOD_FILE}"):
        load_method(Remembering(), tmp_path / "checkpoint-8", 0, 2)


# ---- rotation


def test_rotation_drops_what_was_saved_first_and_never_what_must_be_kept(tmp_path: Path) -> None:
    for step in (9, 3, 6):  # 9 is left from before a damage; the run went on from an earlier one
        checkpoint(tmp_path, step)
    rotate(tmp_path, None, {tmp_path / "checkpoint-6"})
    rotate(tmp_path, 3, {tmp_path / "checkpoint-6"})
    assert list(checkpoints(tmp_path)) == [9, 6, 3]
    rotate(tmp_path, 2, {tmp_path / "checkpoint-6"})
    assert list(checkpoints(tmp_path)) == [6, 3]
    checkpoint(tmp_path, 7)
    rotate(
        tmp_path, 2, {tmp_path / "checkpoint-7", tmp_path / "checkpoint-3"}
    )  # the best one is the oldest
    assert list(checkpoints(tmp_path)) == [7, 3]
    checkpoint(tmp_path, 6)
    rotate(tmp_path, 2, {tmp_path / "checkpoint-6", tmp_path / "checkpoint-3"})
    assert list(checkpoints(tmp_path)) == [6, 3]
    rotate(tmp_path, 1, {tmp_path / "checkpoint-6", tmp_path / "checkpoint-3"})
    assert list(checkpoints(tmp_path)) == [6, 3]
    rotate(tmp_path, 1, {tmp_path / "checkpoint-6"})
    assert list(checkpoints(tmp_path)) == [6]
