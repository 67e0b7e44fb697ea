"""A method's file in a checkpoint, and which checkpoint of a run is whole."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.hf.checkpoint import METHOD_FILE, CheckpointError, last_whole_checkpoint, load_method, save_method
from advreg.hf.ranks import method_file
from advreg.methods import Standard
from advreg.methods.base import MethodState, option


@dataclass
class Remembering(Standard):
    """Standard training with something to remember."""

    size: float = option(1.0, "a setting")
    kinds: tuple[int, ...] = option((1, 2), "a setting that JSON turns into a list")
    kept: MethodState = field(default_factory=MethodState, init=False)

    def state(self) -> MethodState:
        return self.kept

    def load_state(self, state: MethodState) -> None:
        self.kept = state


Remembering.name = "remembering"
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
    method.kept = MethodState(tensors, {"fingerprint": "äbc δ"})
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
    with pytest.raises(CheckpointError, match=f"holds no {METHOD_FILE}; it was not saved by advreg, or with save_only"):
        load_method(Standard(), tmp_path)


def test_another_method_or_other_options_are_refused_naming_what_changed(tmp_path: Path) -> None:
    save_method(Remembering(size=0.5), tmp_path)
    with pytest.raises(CheckpointError, match="was trained with remembering, this run with standard"):
        load_method(Standard(), tmp_path)
    changed = Remembering(size=0.25, kinds=(3,))
    with pytest.raises(
        CheckpointError, match=r"remembering differ .*: size 0\.5 → 0\.25, kinds \[1, 2\] → \[3\]; resume"
    ):
        load_method(changed, tmp_path)
    assert changed.kept == MethodState()
    load_method(Remembering(size=0.5), tmp_path)


# ---- which checkpoint is whole


def checkpoint(run: Path, name: str, method: bool = True, seal: str | None = json.dumps({"global_step": 1})) -> Path:
    folder = run / name
    folder.mkdir(parents=True)
    if method:
        save_method(Standard(), folder)
    if seal is not None:
        (folder / "trainer_state.json").write_text(seal)
    return folder


def test_the_last_is_the_largest_number_and_not_the_last_word(tmp_path: Path) -> None:
    for step in (9, 10, 100, 20):
        checkpoint(tmp_path, f"checkpoint-{step}")
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


@pytest.mark.parametrize(
    "half",
    [{"seal": None}, {"seal": ""}, {"seal": '{"global_step": 1, "log_hist'}, {"method": False}],
    ids=["no seal", "empty seal", "truncated seal", "no method file"],
)
def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(half: dict[str, Any], tmp_path: Path) -> None:
    checkpoint(tmp_path, "checkpoint-5")
    whole = checkpoint(tmp_path, "checkpoint-8")
    checkpoint(tmp_path, "checkpoint-12", **half)
    checkpoint(tmp_path, "checkpoint-13", **half)
    assert last_whole_checkpoint(tmp_path) == whole


def test_other_folders_and_files_are_not_checkpoints(tmp_path: Path) -> None:
    checkpoint(tmp_path, "checkpoint-best")
    checkpoint(tmp_path, "checkpoint-7-old")
    (tmp_path / "checkpoint-9").write_text("a file")
    assert last_whole_checkpoint(tmp_path) is None
    assert last_whole_checkpoint(tmp_path / "nowhere") is None


# ---- many processes


@dataclass
class Dealing(Remembering):
    """Remembers other things in each process, and says which states it was dealt anew from."""

    def redealt(self, states: Iterable[MethodState]) -> MethodState:
        return MethodState({"all": torch.cat([state.tensors["mine"] for state in states])}, {"dealt": "anew"})


Dealing.name = "dealing"


def saved_by(world: int, folder: Path) -> None:
    for rank in reversed(range(world)):
        method = Dealing()
        method.kept = MethodState({"mine": torch.tensor([rank])}, {"rank": str(rank)})
        save_method(method, folder, {"seconds": rank + 0.5}, rank, world)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_as_many_processes_each_get_back_what_was_theirs(world: int, tmp_path: Path) -> None:
    saved_by(world, tmp_path / "checkpoint-1")
    for rank in range(world):
        method = Dealing()
        assert load_method(method, tmp_path / "checkpoint-1", rank, world) == {"seconds": rank + 0.5}
        assert method.kept.tensors["mine"].tolist() == [rank]
        assert method.kept.facts == {"rank": str(rank)}


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 3)])
def test_another_number_of_processes_is_dealt_what_all_had(before: int, after: int, tmp_path: Path) -> None:
    saved_by(before, tmp_path)
    for rank in range(after):
        method = Dealing()
        assert load_method(method, tmp_path, rank, after) == {"seconds": 0.5}
        assert method.kept.tensors["all"].tolist() == list(range(before))
        assert method.kept.facts == {"dealt": "anew"}


def test_a_save_by_another_number_of_processes_takes_the_place_of_the_last(tmp_path: Path) -> None:
    for world in (3, 1, 2):
        saved_by(world, tmp_path)
        assert len(list(tmp_path.glob("advreg_method*"))) == world


def test_a_checkpoint_lacking_a_process_s_file_is_not_whole(tmp_path: Path) -> None:
    for step in (4, 8):
        saved_by(2, tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    (tmp_path / "checkpoint-8" / method_file(1, 2)).unlink()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    with pytest.raises(CheckpointError, match=f"checkpoint-8 holds no {METHOD_FILE}"):
        load_method(Dealing(), tmp_path / "checkpoint-8", 0, 2)
