"""What the trainer does for a method that remembers samples: look ahead, resume with the cache
elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import Arch, Method
from observe import Padded, remembered
from tiny_models import tiny, tiny_batch

SAMPLES = 22


def samples(model: Any, count: int = SAMPLES) -> list[dict[str, Any]]:
    drawn = [tiny_batch(model, batch=1, seed=seed, lengths=[4 + seed % 5]) for seed in range(count)]
    return [
        {name: value[0].tolist() for name, value in one.items() if name != "attention_mask"}
        for one in drawn
    ]


def make_trainer(folder: Path, method: Method, **arguments: Any) -> AdversarialTrainer:
    model = tiny("bert", dropout=0.1)
    fields = {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    settings = TrainingArguments(
        str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **fields | {"save_strategy": "no"} | arguments,
    )
    return AdversarialTrainer(
        model=model,
        args=settings,
        train_dataset=samples(model),
        data_collator=Padded(model.config.pad_token_id),
        method=method,
    )


def arch(**options: Any) -> Arch:
    return Arch(**{"cache_fraction": 0.5, "refresh_every": 2, "ascent_steps": 2} | options)


def losses(trainer: AdversarialTrainer) -> list[float]:
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def learns(trainer: AdversarialTrainer) -> bool:
    """Is the mean loss of the last epoch below that of the first?"""
    found, steps = losses(trainer), len(losses(trainer)) // 4
    return sum(found[-steps:]) < sum(found[:steps])


def same_weights(one: AdversarialTrainer, other: AdversarialTrainer) -> bool:
    return all(
        torch.equal(value, other.model.state_dict()[name])
        for name, value in one.model.state_dict().items()
    )


class Spy:
    """Notes what a memory was asked to prefetch and what was read."""

    def __init__(self, memory: Any) -> None:
        self.told: list[list[int]] = []
        self.came: list[list[int]] = []
        prefetch, read = memory.prefetch, memory.read
        memory.prefetch = lambda ids: (self.told.append(ids.tolist()), prefetch(ids))
        memory.read = lambda ids, *rest: (self.came.append(ids.tolist()), read(ids, *rest))[1]


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_cache_outside_the_device_is_told_of_every_batch_of_an_epoch_but_its_first_group_before_it_comes(
    tmp_path: Path, accumulation: int, workers: int
) -> None:
    method = arch(refresh_every=None, ascent_steps=1, cache_device="disk")
    spy = Spy(method.memory)
    trainer = make_trainer(
        tmp_path,
        method,
        num_train_epochs=2,
        gradient_accumulation_steps=accumulation,
        dataloader_num_workers=workers,
    )
    trainer.train()
    came = [sample for ids in spy.came for sample in ids]  # in one epoch of reuse
    assert sorted(came) == list(range(SAMPLES))
    batches = 6
    assert len(spy.came) == batches
    assert spy.told[-(batches - accumulation) :] == spy.came[accumulation:]


def test_a_cache_on_the_device_is_told_of_nothing(tmp_path: Path) -> None:
    method = arch(refresh_every=None, ascent_steps=1)
    spy = Spy(method.memory)
    make_trainer(tmp_path, method, num_train_epochs=2).train()
    assert spy.came
    assert not spy.told


@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_tier_trains_to_the_same_bits(tmp_path: Path, accumulation: int) -> None:
    runs = []
    for tier in ("device", "host", "disk"):
        trainer = make_trainer(
            tmp_path, arch(cache_device=tier), gradient_accumulation_steps=accumulation
        )
        trainer.train()
        runs.append(trainer)
    assert losses(runs[0]) == losses(runs[1]) == losses(runs[2])
    assert same_weights(runs[0], runs[1])
    assert same_weights(runs[0], runs[2])


@pytest.mark.parametrize("options", [{}, {"neighbours": 2}, {"cache_dtype": "float16"}])
@pytest.mark.parametrize("stop", [3, 6, 15])
def test_a_run_that_is_resumed_with_its_cache_on_disk_ends_bit_for_bit_as_the_one_that_went_through(
    tmp_path: Path, options: dict[str, Any], stop: int
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(tmp_path / "whole", arch(**options), **saving)
    whole.train()
    again = make_trainer(tmp_path / "again", arch(**options, cache_device="disk"), **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
    assert same_weights(whole, again)
    mine, theirs = remembered(again.method), remembered(whole.method)
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())
    assert again.passes == whole.passes


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_the_parts_of_the_loss_that_are_logged_add_up_to_the_loss_under_accumulation(
    tmp_path: Path, accumulation: int
) -> None:
    trainer = make_trainer(tmp_path, arch(weight=2.0), gradient_accumulation_steps=accumulation)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "task_loss" in line]
    assert len(lines) == 4 * -(
        -6 // accumulation
    )  # of six batches an epoch; the last group may be smaller
    for line in lines:
        assert line["loss"] == pytest.approx(line["task_loss"] + 2.0 * line["penalty"], rel=1e-3)


def test_a_collator_is_never_given_more_samples_than_a_training_batch_has(tmp_path: Path) -> None:
    """Neither in training, nor when the data is looked at before it."""
    sizes: list[int] = []
    trainer = make_trainer(tmp_path, arch(), num_train_epochs=1)
    collate = trainer.data_collator.collator
    trainer.data_collator.collator = lambda features: (
        sizes.append(len(features)),
        collate(features),
    )[1]
    trainer.train()
    assert sorted(sizes) == [2] * 2 + [4] * 10  # 22 samples, twice
