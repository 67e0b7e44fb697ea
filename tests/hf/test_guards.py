"""What must not spoil a run: gradients that are not finite, and memory that runs out."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from advreg.hf.checkpoint.state import checkpoints
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.methods import create
from advreg.methods.base import StepReport
from observe import BadGradient, Weights, reads_in_training
from tiny_models import tiny
from tiny_runs import ARCH, end_of, same_end, tiny_trainer

SGD = {
    "optim": "sgd",
    "learning_rate": 0.1,
}  # Adam makes something of the rounding of a gradient that is zero


def method_of(name: str) -> Any:
    return create(name, **(ARCH if name == "arch" else {}))


def exact() -> Any:
    """A model without dropout, in double precision: passes over other batches give the same
    numbers.
    """
    return tiny("bert", dropout=0.0, dtype=torch.float64)


def assert_same_up_to_rounding(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            other[name], value, rtol=1e-6, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


# ---- gradients that are not finite


@pytest.mark.parametrize("clip", [1.0, 0.0])
@pytest.mark.parametrize("name", ["r3f", "freelb", "arch"])
def test_a_gradient_that_is_not_finite_stops_the_run_before_it_reaches_a_weight(
    name: str, clip: float, tmp_path: Path
) -> None:
    trainer = tiny_trainer(
        tmp_path, method_of(name), callbacks=[BadGradient(3)], max_grad_norm=clip
    )
    with pytest.raises(
        NonFiniteLossError, match=r"gradient.* step 2 \(epoch 1\), sample ids \[\d, \d, \d, \d\]"
    ):
        trainer.train()
    assert list(checkpoints(tmp_path)) == [2, 1]
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


def test_a_gradient_that_is_not_finite_in_a_replay_of_freeat_stops_the_run_too(
    tmp_path: Path,
) -> None:
    trainer = tiny_trainer(tmp_path, create("freeat", replays=2), callbacks=[BadGradient(3)])
    told = r"the gradient is not finite in a replay; .* \(step 2 \(epoch 1\), sample ids \[\d, \d, \d, \d\]\)"
    with pytest.raises(NonFiniteLossError, match=told):
        trainer.train()
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


def test_the_samples_of_all_micro_batches_are_named(tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path, create("r3f"), callbacks=[BadGradient(1)], per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    batches: list[int] = []
    step = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: (
        batches.extend(inputs["sample_id"].tolist()),
        step(model, inputs, *rest),
    )[1]
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.train()
    assert re.search(r"sample ids (\[.*\])\.", str(caught.value)).group(1) == str(batches)  # type: ignore[union-attr]
    assert len(batches) == 4


def test_of_the_micro_batches_of_an_update_the_one_whose_loss_is_not_finite_is_named(
    tmp_path: Path,
) -> None:
    trainer = tiny_trainer(
        tmp_path,
        create("r3f"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        save_strategy="no",
    )
    batches: list[list[int]] = []
    objective = trainer.method.objective

    def spoilt(task: Any, batch: Any, *rest: Any) -> StepReport:
        batches.append(batch["sample_id"].tolist())
        report = objective(task, batch, *rest)
        return replace(report, loss=torch.tensor(torch.inf)) if len(batches) == 2 else report

    trainer.method.objective = spoilt
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.train()
    assert f"the loss is inf at step 0 (epoch 0), sample ids {batches[1]}: task loss" in str(
        caught.value
    )
    assert trainer.state.global_step == 0


def test_a_step_waits_for_nothing_between_its_passes_however_many_there_are_to_an_update(
    tmp_path: Path,
) -> None:
    counts = []
    for steps in (1, 4):
        trainer = tiny_trainer(
            tmp_path / str(steps), create("freeat", replays=1), per_device_train_batch_size=8 // steps, max_steps=1,
            gradient_accumulation_steps=steps, logging_nan_inf_filter=False, save_strategy="no",
        )  # fmt: skip
        counts.append(reads_in_training(trainer))
    assert counts[0] == counts[1] > 0  # what an update reads before it is made, and what is logged


def test_dropout_is_on_again_after_an_evaluation_of_what_a_wrapper_holds(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, create("r3f"), save_strategy="no")
    wrapper = Wrapper(trainer.model)
    trainer.current_gradient_accumulation_steps = 1  # as the stock loop sets it
    trainer.model.eval()
    assert wrapper.training
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.training_step(wrapper, batch)
    assert all(module.training for module in trainer.model.modules())


class Wrapper(nn.Module):
    """As DDP is: a module around the model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


def test_arithmetic_is_estimated_as_by_the_stock_trainer(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, create("r3f"))
    inputs = {"input_ids": torch.ones(3, 7, dtype=torch.int64)}
    assert trainer.floating_point_ops(inputs) == Trainer.floating_point_ops(trainer, inputs) > 0
    assert trainer.floating_point_ops({}) == Trainer.floating_point_ops(trainer, {}) == 0


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_an_update_that_is_not_finite_is_skipped_and_counted_if_asked(
    clip: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history, updates = {}, Counter[int]()
    for step in (None, 3):
        model = exact()
        callbacks = [Weights(), *([] if step is None else [BadGradient(step)])]
        trainer = tiny_trainer(
            tmp_path / str(step), create("r3f"), model, callbacks=callbacks, on_non_finite="skip",
            max_grad_norm=clip, weight_decay=0.1, save_steps=4,
        )  # fmt: skip
        trainer.method.updated = lambda task, method=trainer.method: updates.update([id(method)])
        trainer.train()
        assert updates.pop(id(trainer.method)) == (4 if step else 5)  # one before the first step
        history[step] = callbacks[0].seen, trainer
    (straight, _), (skipping, trainer) = history[None], history[3]
    assert trainer.skipped == 1
    assert same_end(skipping[1], straight[1])  # until then
    assert same_end(skipping[2], skipping[1])  # not even decayed
    assert not same_end(skipping[3], skipping[2])  # and on
    assert all(bool(torch.isfinite(value).all()) for value in skipping[3].values())
    assert re.search(
        r"not finite at step 2 \(epoch 1\), sample ids \[[\d, ]+\]; the update is skipped",
        caplog.text,
    )
    again = tiny_trainer(
        tmp_path / "3", create("r3f"), exact(), num_train_epochs=3, on_non_finite="skip"
    )
    again.train(resume_from_checkpoint=True)
    assert again.skipped == 1  # it is counted on


@pytest.mark.parametrize("name", ["r3f", "standard"])
def test_a_run_that_skips_every_update_stops_after_an_epoch(name: str, tmp_path: Path) -> None:
    model = exact()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    trainer = tiny_trainer(
        tmp_path, method_of(name), model, on_non_finite="skip", num_train_epochs=5
    )
    with pytest.raises(NonFiniteLossError, match=r"all 2 updates so far were skipped"):
        trainer.train()


@pytest.mark.parametrize("name", ["arch", "smart", "freelb", "freeat", "r3f", "standard"])
def test_a_loss_that_is_not_finite_is_skipped_if_asked_by_every_method(
    name: str, tmp_path: Path
) -> None:
    trainer = tiny_trainer(
        tmp_path,
        method_of(name),
        exact(),
        callbacks=[Bias(2)],
        on_non_finite="skip",
        save_strategy="no",
    )
    trainer.train()
    assert trainer.skipped == 1
    assert trainer.state.global_step == 4
    assert all(bool(torch.isfinite(value).all()) for value in end_of(trainer).values())
    if name == "standard":
        return  # the stock trainer's log has the loss alone
    told = [line["task_loss"] for line in trainer.state.log_history if "task_loss" in line]
    assert len(told) == 3  # none of the step that was skipped
    assert all(map(torch.isfinite, map(torch.tensor, told)))


class Bias(TrainerCallback):  # type: ignore[misc]
    """During one step the head's bias is not a number."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step == self.step - 1:
            self.kept = model.classifier.bias.detach().clone()
            nn.init.constant_(model.classifier.bias, float("nan"))

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                model.classifier.bias.copy_(self.kept)


def test_on_non_finite_is_one_of_three_words(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"on_non_finite must be one of .*stop.*skip.*ignore.*, got 'warn'"
    ):
        tiny_trainer(tmp_path, on_non_finite="warn")


# ---- memory that runs out


@contextmanager
def small_memory(model: Any, samples: int, backward: bool = False) -> Iterator[list[int]]:
    """A pass of more than so many samples runs out of memory: in its middle, or in the backward
    pass through it.

    Yields the sizes of the passes that went through.
    """
    went: list[int] = []

    def forward(module: nn.Module, inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if not module.training:  # the survey of the data
            return
        if len(hidden) <= samples:
            went.append(len(hidden))
        elif not backward:
            raise torch.OutOfMemoryError("out of memory, says the test")
        elif hidden.requires_grad:
            hidden.register_hook(run_out)

    def run_out(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("out of memory, says the test")

    handle = model.bert.encoder.layer[0].register_forward_hook(forward)
    try:
        yield went
    finally:
        handle.remove()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("r3f", False),
        ("arch", False),
        ("arch", True),
    ],  # R3F draws its noise anew after a failed backward pass
    ids=["r3f, forward", "arch, forward", "arch, backward"],
)
def test_when_the_fused_pass_does_not_fit_two_passes_give_the_same_weights(
    name: str, accumulation: int, backward: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"noise": "normal"} if name == "r3f" else {**ARCH, "refresh_every": None}
    fields = {
        "per_device_train_batch_size": 4 // accumulation,
        "gradient_accumulation_steps": accumulation,
    }
    fields |= {"save_strategy": "no", "num_train_epochs": 3, **SGD}
    ends, passes = [], []
    for small in (False, True):
        method = create(name, fuse=small, **options)
        trainer = tiny_trainer(tmp_path, method, exact(), **fields)
        with small_memory(trainer.model, 4 // accumulation if small else 99, backward):
            trainer.train()
        ends.append(end_of(trainer))
        passes.append(trainer.passes)
    assert_same_up_to_rounding(*ends)
    assert passes[0] == passes[1]
    assert caplog.text.count("out of memory in the fused pass") == 1


def test_memory_that_runs_out_in_a_later_micro_batch_leaves_no_half_of_a_gradient(
    tmp_path: Path,
) -> None:
    """The second of two micro-batches fails in its backward pass: the first one's gradient is made
    again.
    """
    ends = []
    for fails in (False, True):
        method = create("arch", **{**ARCH, "refresh_every": None, "fuse": fails})
        model = exact()
        trainer = tiny_trainer(
            tmp_path, method, model, per_device_train_batch_size=2, gradient_accumulation_steps=2, save_strategy="no",
            num_train_epochs=3, **SGD,
        )  # fmt: skip
        if fails:
            count = 0

            def strike(module: nn.Module, inputs: Any, output: Any) -> None:
                nonlocal count
                hidden = output[0] if isinstance(output, tuple) else output
                if len(hidden) == 4 and hidden.requires_grad:  # the fused pass over two samples
                    count += 1
                    if count == 2:
                        hidden.register_hook(lambda gradient: exec_oom())

            model.bert.encoder.layer[0].register_forward_hook(strike)
        trainer.train()
        ends.append(end_of(trainer))
    assert count == 2
    assert_same_up_to_rounding(*ends)


def exec_oom() -> None:
    raise torch.OutOfMemoryError("out of memory, says the test")


def test_without_a_fused_pass_to_split_memory_that_runs_out_is_an_error(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, create("standard"), save_strategy="no")
    with small_memory(trainer.model, 3), pytest.raises(torch.OutOfMemoryError):
        trainer.train()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_an_ascent_in_halves_finds_what_the_whole_one_finds(
    backward: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the passes of the ascent are too large here."""
    ends = []
    for small in (False, True):
        trainer = tiny_trainer(
            tmp_path,
            create("arch", **ARCH),
            exact(),
            save_strategy="no",
            size=12,
            **SGD,
        )
        task = trainer.task
        plain = task.ascent_logits

        def limited(
            batch: Any, delta: Any, plain: Any = plain, small: bool = small, trainer: Any = trainer
        ) -> Tensor:
            with small_memory(trainer.model, 1 if small else 99, backward):
                return plain(batch, delta)

        trainer.advreg.new_view = lambda task=task: task
        trainer.data_collator.limits = None  # they look at batches that are still on the host
        task.ascent_logits = limited  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING):
            trainer.train()
        ends.append(end_of(trainer))
    assert_same_up_to_rounding(*ends)
    assert "the ascent continues with 1 at a time" in caplog.text
