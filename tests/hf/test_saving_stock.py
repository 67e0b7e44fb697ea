"""Saves compared with the stock Trainer's: the same files and errors, and its checkpoints can be
resumed.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoTokenizer, DataCollatorWithPadding, PreTrainedTokenizerFast

from advreg.hf.checkpoint.manifest import MANIFEST_FILE, flaw
from advreg.hf.checkpoint.ranks import METHOD_FILE
from advreg.hf.checkpoint.state import CheckpointError, checkpoints, last_whole_checkpoint
from advreg.methods import Standard, create
from contracting import Contracting
from tiny_models import tiny
from tiny_runs import end_of, stock_trainer, tiny_trainer


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the stock Trainer: two steps to an epoch, a checkpoint at each of four
    steps.
    """
    folder = tmp_path_factory.mktemp("stock")
    stock_trainer(folder).train()
    return folder


@pytest.fixture
def copy(stock: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stock, tmp_path / "copy"))


def resumed(folder: Path, given: Any = True, method: Any = None, **more: Any) -> Any:
    trainer = tiny_trainer(folder, method, model=tiny("bert", seed=5, dropout=0.1), **more)
    trainer.train(resume_from_checkpoint=given)
    return trainer


def arch(**options: Any) -> Any:
    return create("arch", **{"cache_fraction": 0.5, "ascent_steps": 1, "radius": 0.5} | options)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("advreg")]


# ---- the same files


def a_tokenizer() -> Any:
    words = {f"w{number}": number for number in range(1, 50)} | {"[PAD]": 0}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, "w1")), pad_token="[PAD]"
    )


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


BEST = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"save_total_limit": 1},
        {"save_only_model": True},
        {"save_strategy": "no"},
        BEST | {"save_total_limit": 2},
    ],
    ids=["all", "one", "model only", "none", "best"],
)
def test_a_run_leaves_the_stock_trainer_s_files_and_what_seals_a_checkpoint(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    for name, make in (("stock", stock_trainer), ("ours", tiny_trainer)):
        own: dict[str, Any] = (
            {"eval_dataset": [{"input_ids": [5, 6], "labels": 1}]}
            if "eval_steps" in settings
            else {}
        )
        if name == "ours":
            own["method"] = Standard()
        trainer = make(tmp_path / name, **settings, **own)
        trainer.train()
        trainer.save_model(str(tmp_path / name / "model"))
    theirs, mine = tree(tmp_path / "stock"), tree(tmp_path / "ours")
    kept = [path for path in theirs if "/" not in path and path != "model"]
    extra = {f"{checkpoint}/{MANIFEST_FILE}" for checkpoint in kept}
    if not settings.get("save_only_model"):
        extra |= {f"{checkpoint}/{METHOD_FILE}" for checkpoint in kept}
    assert set(mine) - set(theirs) == extra
    assert set(theirs) <= set(mine)


@pytest.mark.parametrize("whose", ["collator", "trainer"])
def test_a_tokenizer_that_only_the_collator_has_is_saved_with_checkpoints_and_model(
    whose: str, tmp_path: Path
) -> None:
    tokenizer = a_tokenizer()
    given = {"data_collator": DataCollatorWithPadding(tokenizer)}
    if whose == "trainer":
        given["processing_class"] = tokenizer
    trainer = tiny_trainer(tmp_path, Standard(), max_steps=1, **given)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "checkpoint-1", tmp_path / "model"):
        assert AutoTokenizer.from_pretrained(str(folder)).get_vocab() == tokenizer.get_vocab()
    assert flaw(tmp_path / "checkpoint-1") is None


# ---- its checkpoints


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("method", ["standard", "r3f", "freelb"])
def test_a_method_without_a_memory_goes_on_from_a_stock_checkpoint_as_if_it_were_its_own(
    method: str, step: int, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"ascent_steps": 1} if method == "freelb" else {}
    trainer = resumed(copy, str(copy / f"checkpoint-{step}"), create(method, **options))
    assert trainer.state.global_step == 4
    assert warnings_of(caplog) == []
    if method == "standard":
        theirs = stock_trainer(copy.parent / "again", model=tiny("bert", seed=5, dropout=0.1))
        theirs.train(resume_from_checkpoint=str(copy / f"checkpoint-{step}"))
        mine = dict(trainer.model.named_parameters())
        assert all(
            torch.allclose(mine[name], value, atol=1e-6)
            for name, value in theirs.model.named_parameters()
        )


@pytest.mark.parametrize(
    ("step", "told", "refreshes"),
    [(2, "epoch 1", {1}), (1, "epoch 0.5", {0, 1}), (3, "epoch 1.5", {1, 2})],
)
@pytest.mark.parametrize("every", [None, 15])
def test_arch_fills_its_memory_after_a_stock_checkpoint_and_says_so_once(
    every: int | None,
    step: int,
    told: str,
    refreshes: set[int],
    copy: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    method = arch(refresh_every=every)
    seen: dict[int, set[bool]] = {}
    read = method.memory.read
    trainer = tiny_trainer(
        copy, method, model=tiny("bert", seed=5, dropout=0.1), num_train_epochs=5
    )

    def noted(ids: Tensor, zeros: Any, epoch: int) -> Any:
        seen.setdefault(trainer.advreg.epoch, set()).add(True)
        delta = read(ids, zeros, epoch)
        assert all(bool((values.abs().sum((1, 2)) > 0).all()) for values in delta.values.values())
        return delta

    method.memory.read = noted
    trainer.train(resume_from_checkpoint=str(copy / f"checkpoint-{step}"))
    assert set(range(step // 2, 5)) - set(seen) == refreshes
    (warning,) = [line for line in warnings_of(caplog) if "without advreg" in line]
    assert f"checkpoint-{step} was saved without advreg: arch remembers nothing yet" in warning
    assert f"begins at {told}" in warning


def test_a_run_that_began_at_a_stock_checkpoint_is_resumed_to_the_bit(
    copy: Path, tmp_path: Path
) -> None:
    start = str(copy / "checkpoint-1")
    whole = resumed(tmp_path / "whole", start, arch(refresh_every=None), num_train_epochs=3)
    part = resumed(tmp_path / "part", start, arch(refresh_every=None), num_train_epochs=3)
    for step in (3, 4, 5):
        again = resumed(part.args.output_dir, str(tmp_path / "part" / f"checkpoint-{step}"), arch(refresh_every=None),
                        num_train_epochs=3)  # fmt: skip
        one, other = end_of(again), end_of(whole)
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_method_writes_weights_from_the_first_step_after_a_stock_checkpoint(copy: Path) -> None:
    norms: list[float] = []
    trainer = tiny_trainer(copy, Contracting())
    weight = trainer.model.classifier.weight
    trainer.model.classifier.register_forward_pre_hook(
        lambda *_: norms.append(float(torch.linalg.matrix_norm(weight.detach(), 2)))
    )
    trainer.train(resume_from_checkpoint=str(copy / "checkpoint-2"))
    assert norms
    assert all(norm <= 1 + 1e-6 for norm in norms)


# ---- which one


def test_the_last_usable_checkpoint_of_a_folder_with_both_kinds_is_gone_on_from(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(copy / "checkpoint-4")
    assert last_whole_checkpoint(copy) == copy / "checkpoint-3"
    (copy / "checkpoint-3" / "trainer_state.json").unlink()  # its save did not end
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"
    assert "checkpoint-3 is not used: it holds no trainer_state.json" in caplog.text
    trainer = resumed(
        copy, method=arch(), max_steps=3
    )  # saves 3 and claims the folder from there on
    assert trainer.state.global_step == 3
    assert last_whole_checkpoint(copy) == copy / "checkpoint-3"
    (copy / "checkpoint-3" / "optimizer.pt").write_bytes(b"")
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"
    assert resumed(copy, method=arch()).state.global_step == 4
    assert last_whole_checkpoint(copy) == copy / "checkpoint-4"


@pytest.mark.parametrize("left", [METHOD_FILE, MANIFEST_FILE])
def test_a_folder_with_a_file_of_ours_and_no_manifest_is_not_taken_for_a_stock_one(
    left: str, copy: Path
) -> None:
    folder = copy / "checkpoint-3"
    (folder / left).write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=rf"Can't find a valid checkpoint at .*checkpoint-3: {MANIFEST_FILE}"
    ):
        resumed(copy, str(folder), Standard())
    shutil.rmtree(copy / "checkpoint-4")
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"


def test_what_lies_in_a_folder_of_ours_without_our_files_is_not_taken_for_a_stock_one(
    tmp_path: Path,
) -> None:
    """Half of a copy, or another Trainer's; one that is moved to a folder of its own is gone on
    from.
    """
    tiny_trainer(tmp_path / "run", Standard()).train()
    folder = tmp_path / "run" / "checkpoint-4"
    for path in folder.glob("advreg_*"):
        path.unlink()
    assert last_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-3"
    with pytest.raises(
        CheckpointError, match="if a Trainer without advreg saved it, move it to another folder"
    ):
        resumed(tmp_path / "run", str(folder), Standard())
    (tmp_path / "elsewhere").mkdir()
    shutil.move(folder, tmp_path / "elsewhere" / "checkpoint-4")
    assert (
        resumed(
            tmp_path / "run", str(tmp_path / "elsewhere" / "checkpoint-4"), Standard()
        ).state.global_step
        == 4
    )


def test_a_new_run_beside_stock_checkpoints_does_not_go_on_from_them(copy: Path) -> None:
    tiny_trainer(copy, Standard(), max_steps=2).train()
    shutil.rmtree(copy / "checkpoint-1")
    shutil.rmtree(copy / "checkpoint-4")
    assert list(checkpoints(copy)) == [3, 2]
    assert last_whole_checkpoint(copy) == copy / "checkpoint-2"


@pytest.mark.parametrize("method", ["standard", "arch"])
def test_weights_alone_are_gone_on_from_by_a_method_without_a_memory(
    method: str, tmp_path: Path
) -> None:
    """As the stock Trainer does, with a new optimizer."""
    one = Standard() if method == "standard" else arch()
    tiny_trainer(tmp_path, one, save_only_model=True, max_steps=2).train()
    if method == "standard":
        assert resumed(tmp_path, True, Standard()).state.global_step == 4
    else:
        with pytest.raises(CheckpointError, match="No valid checkpoint found in output directory"):
            resumed(tmp_path, True, arch())
        with pytest.raises(
            CheckpointError,
            match=f"checkpoint-2: it holds no {METHOD_FILE}, as with save_only_model",
        ):
            resumed(tmp_path, str(tmp_path / "checkpoint-2"), arch())


# ---- the same errors

DAMAGES: dict[str, Any] = {
    "no folder": lambda folder: shutil.rmtree(folder),
    "empty folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "no state": lambda folder: (folder / "trainer_state.json").unlink(),
    "half a state": lambda folder: (folder / "trainer_state.json").write_text('{"epoch": 1'),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "weights cut": lambda folder: (folder / "model.safetensors").write_bytes(b"\x10" * 40),
    "empty optimizer": lambda folder: (folder / "optimizer.pt").write_bytes(b""),
    "no optimizer's": lambda folder: (folder / "optimizer.pt").write_bytes(b"\x80\x05K\x01."),
    "no pickle": lambda folder: (folder / "scheduler.pt").write_bytes(b"neither this"),
    "no state of random": lambda folder: torch.save({}, folder / "rng_state.pth"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_gone_on_from_raises_what_the_stock_trainer_raises(
    damage: str, copy: Path
) -> None:
    folder = copy / "checkpoint-3"
    DAMAGES[damage](folder)
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever it is
        stock_trainer(copy).train(resume_from_checkpoint=str(folder))
    kind = (
        ValueError if issubclass(theirs.type, ValueError) else theirs.type
    )  # of JSON's own there is no subclass
    with pytest.raises(kind) as ours:
        tiny_trainer(copy, Standard()).train(resume_from_checkpoint=str(folder))
    assert str(ours.value)


def test_without_a_checkpoint_the_stock_trainer_s_error_is_raised(tmp_path: Path) -> None:
    for make in (stock_trainer, tiny_trainer):
        with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
            make(tmp_path).train(resume_from_checkpoint=True)


def test_warnings_are_the_first_process_s(stock: Path, caplog: pytest.LogCaptureFixture) -> None:
    from advreg.hf.checkpoint.state import load_method

    method = create("smart", proximal_weight=1.0)
    with caplog.at_level(logging.WARNING):
        assert load_method(method, stock / "checkpoint-3", 1, 2) == {}
        assert warnings_of(caplog) == []
        assert load_method(method, stock / "checkpoint-3", 0, 2) == {}
        assert len(warnings_of(caplog)) == 1


def test_weights_that_an_evaluation_after_their_save_finds_best_are_the_best_checkpoint(
    tmp_path: Path,
) -> None:
    """Saved at every step, evaluated at the end of each epoch; the first evaluation is the best."""
    found = []
    for name, make in (("stock", stock_trainer), ("ours", tiny_trainer)):
        own = {"method": Standard()} if name == "ours" else {}
        trainer = make(
            tmp_path / name,
            eval_dataset=[{"input_ids": [5, 6], "labels": 1}],
            eval_strategy="epoch",
            save_strategy="steps",
            save_steps=1,
            metric_for_best_model="score",
            **own,
        )
        scores = iter([0.9, 0.5, 0.4, 0.3])
        trainer._evaluate = lambda *_, scores=scores: {"eval_score": next(scores)}
        trainer.train()
        found.append(Path(trainer.state.best_model_checkpoint).name)
    assert found[0] == found[1] == "checkpoint-2"
