"""The Trainer with a method: training, logs, saves, and the error that ends a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Seq2SeqTrainingArguments, Trainer, set_seed

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.trainer import AdversarialSeq2SeqTrainer
from advreg.lab.kinds.translation.batching import (
    PairCollator,
    Pairs,
    TokenBatches,
    TokenBudgetTrainer,
)
from advreg.methods import create, registry
from advreg.methods.regulariser import Regulariser
from observe import BadGradient, Padded, features_of
from tiny_models import tiny, tiny_batch
from tiny_runs import ARCH, end_of, same_end, tiny_trainer

pytestmark = pytest.mark.smoke

QUIET: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "logging_steps": 1,
}
START = PAD = 49  # of the tiny Marian


def method_of(name: str) -> Any:
    return create(name, **(ARCH if name == "arch" else {}))


def losses(trainer: Any, name: str = "loss") -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


@pytest.mark.parametrize("name", registry)
def test_every_method_learns_and_logs_what_it_did(name: str, tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path, method_of(name), num_train_epochs=8, learning_rate=3e-3, save_strategy="no"
    )
    trainer.train()
    tasks = losses(trainer, "loss" if name == "standard" else "task_loss")
    assert len(tasks) == trainer.passes.steps == 16
    assert sum(tasks[-2:]) < 0.7 * sum(tasks[:2])  # an epoch has two steps
    assert all(math.isfinite(norm) for norm in losses(trainer, "grad_norm"))
    penalties = losses(trainer, "penalty")
    assert len(penalties) == (16 if issubclass(registry[name], Regulariser) else 0)
    assert all(
        penalty > 0 for penalty in penalties[2:]
    )  # what is cached in the first epoch is used from the second


def test_standard_updates_as_the_stock_trainer_does(tmp_path: Path) -> None:
    """With dropout, clipping, a warm-up, and groups of two micro-batches, the last of one."""
    fields = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "warmup_steps": 2}
    ours = tiny_trainer(tmp_path, create("standard"), size=10, save_strategy="no", **fields)
    rows = features_of(tiny_batch("bert", batch=10))
    stock = Trainer(
        model=tiny("bert", dropout=0.1), args=ours.args, train_dataset=rows, data_collator=Padded(0)
    )
    for trainer in (ours, stock):
        set_seed(0)
        trainer.train()
    assert losses(ours) == pytest.approx(losses(stock), rel=1e-4)
    theirs = dict(stock.model.named_parameters())
    assert all(
        torch.allclose(value, theirs[name], atol=1e-6)
        for name, value in ours.model.named_parameters()
    )


@pytest.mark.parametrize("name", ["standard", "arch"])
def test_a_run_resumed_in_mid_epoch_ends_bit_for_bit_as_one_that_was_not_stopped(
    name: str, tmp_path: Path
) -> None:
    """Three steps to an epoch; the fourth of six is in the second."""
    whole = tiny_trainer(tmp_path, method_of(name), size=12)
    whole.train()
    resumed = tiny_trainer(tmp_path, method_of(name), size=12, output_dir=str(tmp_path / "other"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == whole.state.global_step == 6
    assert same_end(end_of(whole), end_of(resumed))
    assert losses(resumed)[-2:] == losses(whole)[-2:]


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path: Path) -> None:
    rows = features_of(tiny_batch("bert", batch=6, seed=3))
    trainer = tiny_trainer(
        tmp_path, method_of("r3f"), eval_dataset=rows, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1,
        load_best_model_at_end=True, learning_rate=1e-2, num_train_epochs=4,
    )  # fmt: skip
    trainer.train()
    found = losses(trainer, "eval_loss")
    assert len(found) == 4
    assert trainer.state.best_metric == min(found)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(found), rel=1e-6)


@pytest.mark.parametrize("name", ["standard", "r3f", "arch"])
def test_a_gradient_that_is_not_finite_stops_the_run_before_it_reaches_a_weight(
    name: str, tmp_path: Path
) -> None:
    trainer = tiny_trainer(tmp_path, method_of(name), callbacks=[BadGradient(3)])
    with pytest.raises(NonFiniteLossError, match=r"gradient.* step 2 \(epoch 1\)"):
        trainer.train()
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


def test_an_update_that_is_not_finite_is_skipped_if_asked(tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path, method_of("r3f"), callbacks=[BadGradient(3)], on_non_finite="skip"
    )
    trainer.train()
    assert (trainer.skipped, trainer.state.global_step) == (1, 4)
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


def test_samples_of_like_length_share_a_batch_if_asked(tmp_path: Path) -> None:
    padding = []
    for strategy in ("random", "group_by_length"):
        trainer = tiny_trainer(
            tmp_path, method_of("arch"), size=40, train_sampling_strategy=strategy
        )
        batches = [batch["attention_mask"] for batch in trainer.get_train_dataloader()]
        assert sum(map(len, batches)) == 40
        padding.append(sum(int((mask == 0).sum()) for mask in batches))
    assert padding[1] < 0.75 * padding[0]


@pytest.mark.parametrize("name", ["standard", "arch"])
def test_a_sequence_to_sequence_trainer_trains_and_generates(name: str, tmp_path: Path) -> None:
    model, rows = tiny("marian", dropout=0.1), features_of(tiny_batch("marian", batch=8))
    fields = {
        **QUIET,
        "save_strategy": "no",
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 4,
    }
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), **fields, num_train_epochs=4, predict_with_generate=True
    )
    collator = Padded(model.config.pad_token_id)
    trainer = AdversarialSeq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=collator,
        method=method_of(name),
    )
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
    found = torch.from_numpy(trainer.predict(rows, max_length=9, num_beams=1).predictions)
    batch = collator(rows)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.eval().generate(**inputs, max_length=9, num_beams=1)
    assert torch.equal(found[:, : expected.shape[1]], expected)


def test_batches_of_a_token_budget_resume_in_mid_epoch_bit_for_bit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(5, 45, size=random.integers(2, 14)).tolist() for _ in range(24)]
    pairs = Pairs(rows, [[*row, 49] for row in rows])

    def trainer_in(folder: Path) -> Any:
        return TokenBudgetTrainer(
            model=tiny("marian", dropout=0.1),
            args=Seq2SeqTrainingArguments(
                str(folder), **QUIET, num_train_epochs=2, save_strategy="steps", save_steps=1
            ),
            train_dataset=pairs,
            data_collator=PairCollator(PAD, START),
            batches=TokenBatches(pairs.lengths, 60),
            method=method_of("arch"),
        )

    whole, resumed = trainer_in(tmp_path), trainer_in(tmp_path / "other")
    whole.train()
    last = whole.state.global_step
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{last - 2}"))
    assert resumed.state.global_step == last >= 6
    assert same_end(end_of(whole), end_of(resumed))
