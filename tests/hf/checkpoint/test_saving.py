"""Checkpoints of the Trainer: sealed, found again when some are damaged, not lost to rotation, and
safe to load.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
    TrainerCallback,
)

from advreg.hf.checkpoint.manifest import (
    MANIFEST_FILE,
    STAGING,
    Manifest,
    claimed,
    discard,
    flaw,
    seal,
    token_of,
)
from advreg.hf.checkpoint.state import CheckpointError, checkpoints, last_whole_checkpoint
from advreg.methods import create
from advreg.records.sealed import load_as, save_as
from little_tables import tiny_folder
from tiny_models import tiny
from tiny_runs import end_of, same_end, tiny_trainer

FILES = (
    "advreg_manifest.json", "advreg_method.safetensors", "config.json", "model.safetensors", "optimizer.pt",
    "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run with four checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    tiny_trainer(folder).train()
    return folder


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """How an undisturbed run ends."""
    trainer = tiny_trainer(tmp_path_factory.mktemp("whole"), save_strategy="no")
    trainer.train()
    return end_of(trainer)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def resumed(folder: Path, given: Any = True, **more: Any) -> Any:
    trainer = tiny_trainer(folder, model=tiny("bert", seed=5, dropout=0.1), **more)
    trainer.train(resume_from_checkpoint=given)
    return trainer


def test_another_number_of_threads_at_resume_is_said(
    copy: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    resumed(copy, str(copy / "checkpoint-3"))
    assert "threads" not in caplog.text
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    resumed(copy, str(copy / "checkpoint-3"))
    assert f"saved with {threads} threads and is resumed with {threads + 1}" in caplog.text
    assert f"OMP_NUM_THREADS={threads}" in caplog.text


@pytest.mark.parametrize("logged_every", [1, 3])
def test_the_loss_of_a_resumed_run_is_the_mean_over_all_its_updates(
    logged_every: int, tmp_path: Path
) -> None:
    usual = {"logging_steps": logged_every, "logging_strategy": "steps"}
    whole = tiny_trainer(tmp_path, **usual)
    whole.train()
    loss = [
        each.advreg.tally.loss.with_rest(float(each._tr_loss), each.state.global_step)
        for each in (whole, resumed(tmp_path, str(tmp_path / "checkpoint-2"), **usual))
    ]
    assert loss[0].updates == loss[1].updates == 4
    assert loss[1].mean == pytest.approx(loss[0].mean, rel=1e-6)
    stock = whole.state.log_history[-1]["train_loss"]
    assert loss[0].mean == pytest.approx(stock, rel=1e-6)


# ---- sealed


def test_every_file_of_a_checkpoint_is_in_its_manifest_and_nothing_is_left_of_the_saving(
    run: Path,
) -> None:
    assert list(checkpoints(run)) == [4, 3, 2, 1]
    for folder in checkpoints(run).values():
        assert sorted(path.name for path in folder.iterdir()) == list(FILES)
        assert flaw(folder) is None
    assert len({token_of(folder) for folder in checkpoints(run).values()}) == 1
    assert all(path.name.startswith("checkpoint") for path in run.iterdir())


def test_a_checkpoint_has_its_name_only_once_it_is_sealed_and_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    renamed: list[tuple[str, list[str]]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        assert flaw(Path(source)) is None
        inside = {
            str(path.resolve()) for path in Path(source).iterdir() if path.name != MANIFEST_FILE
        }
        assert inside <= set(synced)
        renamed.append((Path(target).name, sorted(os.listdir(source))))
        rename(source, target)
        synced.clear()

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    tiny_trainer(tmp_path, save_steps=2).train()
    assert renamed == [("checkpoint-2", list(FILES)), ("checkpoint-4", list(FILES))]
    assert synced == [str(tmp_path.resolve())]  # the name itself


def test_a_run_killed_in_a_save_leaves_a_folder_that_the_next_one_clears(copy: Path) -> None:
    (copy / STAGING).mkdir()
    (copy / "checkpoint-4").rename(copy / STAGING / "checkpoint-4")
    (copy / STAGING / "checkpoint-4" / "half-written").write_text("a")
    assert last_whole_checkpoint(copy) == copy / "checkpoint-3"
    resumed(copy)
    assert not (copy / STAGING).exists()
    assert flaw(copy / "checkpoint-4") is None
    assert sorted(path.name for path in (copy / "checkpoint-4").iterdir()) == list(FILES)
    assert {token_of(folder) for folder in checkpoints(copy).values()} == {
        claimed(copy)
    }  # it is one run


# ---- the names of the weights


def old_bert(folder: Path) -> Any:
    """A BERT whose files have the first names of its norms, as published ones do."""
    tiny_folder(folder)
    weights = load_file(folder / "model.safetensors")
    for new, old in (("weight", "gamma"), ("bias", "beta")):
        weights = {
            name.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): value
            for name, value in weights.items()
        }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)


def mixture(folder: Path) -> Any:
    """A mixture of experts, which its files keep apart."""
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50,
        "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0, "num_labels": 3,
    }  # fmt: skip
    return MixtralForSequenceClassification(MixtralConfig(**sizes))


@pytest.mark.parametrize("make", [old_bert, mixture])
def test_weights_that_files_name_otherwise_are_found_again(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make(tmp_path / "model")
    fields = {"learning_rate": 1e-2, "num_train_epochs": 1}
    whole = tiny_trainer(tmp_path, create("r3f"), deepcopy(model), size=12, **fields)
    whole.train()
    again = tiny_trainer(tmp_path / "other", create("r3f"), deepcopy(model), size=12, **fields)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == whole.state.global_step == 3
    assert same_end(end_of(whole), end_of(again))
    again.model.load_state_dict(model.state_dict())
    again.state.best_model_checkpoint = str(tmp_path / "checkpoint-3")
    again._load_best_model()
    assert same_end(end_of(whole), end_of(again))
    published = type(model).from_pretrained(tmp_path / "checkpoint-3")
    assert all(
        torch.equal(value, whole.model.state_dict()[name])
        for name, value in published.state_dict().items()
    )


# ---- damaged


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from([name for name in FILES if name != "training_args.bin"]),
    kind=st.sampled_from(["cut", "flip", "swap", "empty", "gone"]),
    where=st.floats(0, 1, exclude_max=True),
)
def test_a_damaged_checkpoint_costs_a_step_and_never_the_result(
    run: Path,
    end: dict[str, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    kind: str,
    where: float,
) -> None:
    folder = Path(shutil.copytree(run, tmp_path_factory.mktemp("fuzz") / "copy"))
    shutil.rmtree(folder / "checkpoint-4")
    damage(folder / "checkpoint-3" / name, kind, where, folder / "checkpoint-1" / name)
    assert flaw(folder / "checkpoint-3") is not None
    assert last_whole_checkpoint(folder) == folder / "checkpoint-2"
    bad = (
        "checksum differs|bytes instead"
        if (name, kind) == (MANIFEST_FILE, "swap")
        else f"manifest|{name}"
    )  # it fits no other file
    with pytest.raises(CheckpointError, match=rf"valid checkpoint at .*checkpoint-3: .*({bad})"):
        resumed(folder, str(folder / "checkpoint-3"))
    assert same_end(end_of(resumed(folder)), end)


def damage(path: Path, kind: str, where: float, other: Path) -> None:
    content = path.read_bytes()
    place = int(where * len(content))
    if kind == "gone":
        path.unlink()
    elif kind == "flip":
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        )
    elif kind == "swap" and other.read_bytes() != content:
        shutil.copy(other, path)
    else:
        path.write_bytes(b"" if kind == "empty" else content[:place])


def test_a_checkpoint_swapped_between_runs_is_not_gone_on_from(
    copy: Path, end: dict[str, Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_trainer(tmp_path / "other", seed=5).train()
    shutil.rmtree(copy / "checkpoint-4")
    shutil.copytree(tmp_path / "other" / "checkpoint-4", copy / "checkpoint-4")
    path = copy / "checkpoint-4" / MANIFEST_FILE
    save_as(path, replace(load_as(path, Manifest), at=0.0))  # from before
    assert same_end(end_of(resumed(copy)), end)
    assert "checkpoint-4 is not used: it belongs to another run" in caplog.text


def test_without_a_whole_checkpoint_resuming_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"No valid checkpoint found .*; leave resume_from_checkpoint out"
    ):
        tiny_trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        tiny_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))


def test_a_new_run_in_an_old_folder_does_not_go_on_from_the_old_ones_checkpoints(
    copy: Path,
) -> None:
    old = claimed(copy)
    tiny_trainer(copy, max_steps=2).train()
    assert claimed(copy) != old
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"
    assert token_of(copy / "checkpoint-4") == old


# ---- rotation


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Ends the training after a step, as early stopping does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


@pytest.mark.parametrize("limit", [1, 2])
def test_rotation_never_deletes_the_last_good_one_for_a_damaged_one_with_a_higher_number(
    limit: int, copy: Path
) -> None:
    for step in (3, 4):
        (copy / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    trainer = tiny_trainer(copy, save_total_limit=limit, callbacks=[StopAfter(3)])
    trainer.train(resume_from_checkpoint=True)
    assert last_whole_checkpoint(copy) == copy / "checkpoint-3"
    assert len(checkpoints(copy)) == limit


def test_a_run_killed_while_it_deletes_a_checkpoint_leaves_no_half_of_it(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed as it begins
        discard(copy / "checkpoint-1")
    assert list(checkpoints(copy)) == [4, 3, 2]
    resumed(copy, save_total_limit=2)
    assert list(checkpoints(copy)) == [4, 3]  # and what it would have deleted next is gone
    assert not (copy / STAGING).exists()


def test_going_on_from_an_earlier_checkpoint_deletes_no_later_one_at_the_start(copy: Path) -> None:
    for number in (2, 3):
        trainer = tiny_trainer(copy, save_total_limit=1)
        trainer.advreg.checkpoints.settle(str(copy / f"checkpoint-{number}"))
        assert list(checkpoints(copy)) == [4, 3, 2][: 5 - number]


def test_a_failed_save_deletes_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advreg.hf.checkpoint.saving.seal", full_disk)
    for step in (3, 4):
        shutil.rmtree(copy / f"checkpoint-{step}")
    resumed(copy, save_total_limit=1)
    assert list(checkpoints(copy)) == [2]
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"


def full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_the_best_checkpoint_is_kept_and_known_by_its_own_name(tmp_path: Path) -> None:
    best = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "first",
    }
    trainer = tiny_trainer(tmp_path, save_total_limit=2, eval_dataset=[{}], **best)
    trainer.evaluate = lambda *a, **k: {
        "eval_first": -trainer.state.global_step
    }  # the first step is the best
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    assert list(checkpoints(tmp_path)) == [4, 1]
    assert STAGING not in (tmp_path / "checkpoint-4" / "trainer_state.json").read_text()


# ---- no code from a checkpoint


class Malice:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture(params=["pickle", "torch"])
def poison(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bytes]:
    struck = tmp_path / "struck"
    if request.param == "pickle":
        yield pickle.dumps(Malice(struck))
    else:
        torch.save({"state": Malice(struck)}, tmp_path / "evil.pt")
        yield (tmp_path / "evil.pt").read_bytes()
    assert not struck.exists()


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "advreg_method.safetensors"]
)
def test_code_in_a_checkpoint_whose_manifest_agrees_is_not_run(
    copy: Path, poison: bytes, name: str
) -> None:
    folder = copy / "checkpoint-2"
    (folder / name).write_bytes(poison)
    seal(folder, token_of(folder))
    with pytest.raises(
        CheckpointError, match=rf"{name}.* cannot be read \(.*\); resume from an earlier checkpoint"
    ):
        resumed(copy, str(folder))


def test_code_in_the_weights_or_the_arguments_of_a_checkpoint_is_not_run(
    copy: Path, poison: bytes
) -> None:
    folder = copy / "checkpoint-2"
    (folder / "training_args.bin").write_bytes(poison)  # never read
    seal(folder, token_of(folder))
    resumed(copy, str(folder))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(poison)
    seal(folder, token_of(folder))
    with pytest.raises(CheckpointError, match=r"the weights .* cannot be read"):
        resumed(copy, str(folder))
