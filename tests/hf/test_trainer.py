"""The Trainer with a method: the stock one's arguments, logs, clock, saves, and what it refuses."""

import inspect
import logging
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Seq2SeqTrainingArguments, Trainer, TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from advreg.core.schedule import Clock
from advreg.hf.checkpoint.manifest import MANIFEST_FILE, STAGING
from advreg.hf.checkpoint.state import CheckpointError, last_whole_checkpoint
from advreg.hf.guards.capability import UnsupportedError
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.trainer import AdversarialMixin, AdversarialSeq2SeqTrainer, AdversarialTrainer
from advreg.methods import Standard, Step, StepReport, create, registry
from observe import Padded, features_of, remembered
from tiny_models import tiny, tiny_batch

every_method = pytest.mark.parametrize("name", registry)
OPTIONS: dict[str, dict[str, Any]] = {
    "arch": {"cache_fraction": 0.5, "refresh_every": 2, "radius": 0.5, "ascent_steps": 2},
    "smart": {"radius": 0.5, "ascent_steps": 1, "proximal_weight": 0.5, "proximal_momentum": 0.5},
    "freelb": {"ascent_steps": 1},
    "freeat": {"replays": 2},
    "r3f": {"noise_scale": 0.1},
}
Rows = list[dict[str, Any]]


def method_of(name: str, **options: Any) -> Any:
    return create(name, **OPTIONS.get(name, {}) | options)


def rows_of(family: str = "bert", size: int = 8, seed: int = 0) -> Rows:
    return features_of(tiny_batch(family, batch=size, seed=seed))


def arguments(
    folder: Path, kind: type[TrainingArguments] = TrainingArguments, **fields: Any
) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return kind(**settings | fields)


def trainer_of(
    folder: Path,
    method: Any = None,
    family: str = "bert",
    model: Any = None,
    data: Any = None,
    kind: Any = AdversarialTrainer,
    given: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """A trainer on tiny data; `given` goes to the trainer, `fields` to its arguments."""
    model = model if model is not None else tiny(family)
    settings: dict[str, Any] = {
        "model": model,
        "args": arguments(folder, **fields),
        "train_dataset": rows_of(family) if data is None else data,
        "data_collator": Padded(model.config.pad_token_id),
    }
    if method is not None:
        settings["method"] = method
    return kind(**settings | (given or {}))


def sgd(model: nn.Module, rate: float = 0.05) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))}


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return set(mine) == set(theirs) and all(
        torch.equal(mine[name], value) for name, value in theirs.items()
    )


def logs_of(trainer: Any) -> list[dict[str, Any]]:
    return [line for line in trainer.state.log_history if "loss" in line]


# ---- as the stock Trainer


@pytest.mark.parametrize(
    ("family", "smoothing"), [("bert", 0.0), ("bert", 0.1), ("marian", 0.0), ("t5", 0.0)]
)
def test_standard_updates_as_the_stock_trainer_does(
    family: str, smoothing: float, tmp_path: Path
) -> None:
    """With dropout, one epoch and a half of shuffled batches, clipping, and the stock schedule."""
    found = []
    for kind in (Trainer, AdversarialTrainer):
        model = tiny(family, dropout=0.1)
        optimizer = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})}
        trainer = trainer_of(
            tmp_path,
            None,
            family,
            model,
            kind=kind,
            given=optimizer,
            max_steps=3,
            label_smoothing_factor=smoothing,
        )
        trainer.train()
        found.append(
            (
                weights(trainer),
                [line["loss"] for line in logs_of(trainer)],
                trainer.state.total_flos,
            )
        )
    (theirs, their_losses, their_work), (ours, our_losses, our_work) = found
    assert our_work == their_work > 0
    assert our_losses == pytest.approx(their_losses, rel=1e-4)
    assert all(torch.allclose(ours[name], value, atol=1e-6) for name, value in theirs.items())
    assert not same(theirs, dict(tiny(family, dropout=0.1).named_parameters()))


def test_parameters_are_counted_once_and_modules_set_to_training_when_they_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("bert")
    calls = Counter[str]()
    for name in ("num_parameters", "train"):
        its = getattr(model, name)
        monkeypatch.setattr(
            model, name, lambda *a, its=its, name=name, **k: (calls.update([name]), its(*a, **k))[1]
        )
    seen: list[bool] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(all(module.training for module in model.modules()))
            if state.global_step == 1:
                model.eval()  # as an evaluation leaves it

    given = {"callbacks": [Watch()]}
    trainer = trainer_of(
        tmp_path,
        method_of("r3f"),
        model=model,
        given=given,
        max_steps=8,
        per_device_train_batch_size=1,
    )
    trainer.train()
    assert seen == [True] * 8
    assert calls["num_parameters"] == 1
    assert calls["train"] >= 8  # the stock step's own


def test_every_stock_argument_is_taken(tmp_path: Path) -> None:
    class Quiet(TrainerCallback):
        pass

    model, callback = tiny("bert"), Quiet()
    given: dict[str, Any] = {
        "model": model,
        "args": arguments(tmp_path),
        "data_collator": Padded(0),
        "train_dataset": rows_of(),
        "eval_dataset": rows_of(seed=1),
        "compute_loss_func": lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum(),
        "compute_metrics": lambda prediction: {},
        "callbacks": [callback],
        "preprocess_logits_for_metrics": lambda logits, labels: logits,
        **sgd(model),
    }
    stock = {n: p for n, p in inspect.signature(Trainer.__init__).parameters.items() if n != "self"}
    trainer = AdversarialTrainer(
        **{name: given.get(name, value.default) for name, value in stock.items()}
    )
    for name in (
        "model",
        "args",
        "train_dataset",
        "eval_dataset",
        "compute_loss_func",
        "compute_metrics",
    ):
        assert getattr(trainer, name) is given[name]
    assert trainer.data_collator.collator is given["data_collator"]
    assert callback in trainer.callback_handler.callbacks
    assert trainer.optimizer is given["optimizers"][0]
    assert trainer.preprocess_logits_for_metrics is given["preprocess_logits_for_metrics"]
    assert isinstance(trainer.method, Standard)
    positional = AdversarialTrainer(
        model, given["args"], given["data_collator"], given["train_dataset"]
    )
    assert positional.train_dataset is given["train_dataset"]


def test_a_user_s_loss_function_replaces_the_task_loss(tmp_path: Path) -> None:
    """It sees logits, labels and the number of items of the accumulation group; in evaluation
    too.
    """
    items: list[int] = []

    def focal(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        items.append(int(num_items_in_batch))
        each = F.cross_entropy(outputs.logits, labels, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).sum() / num_items_in_batch

    found = []
    for kind in (Trainer, AdversarialTrainer):
        model = tiny("bert", dropout=0.0)
        settings = {"compute_loss_func": focal, "eval_dataset": rows_of(seed=1), **sgd(model)}
        trainer = trainer_of(
            tmp_path, model=model, kind=kind, given=settings, gradient_accumulation_steps=2
        )
        trainer.train()
        found.append((weights(trainer), trainer.evaluate()["eval_loss"]))
    (theirs, their_loss), (ours, our_loss) = found
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    assert all(torch.allclose(ours[name], value, atol=1e-6) for name, value in theirs.items())
    assert (
        items == [8, 8, 8, 8, 8] * 2
    )  # two epochs of one group of 2 × 4, and one evaluation batch


def test_metrics_of_an_evaluation_in_mid_training_are_those_of_the_model(tmp_path: Path) -> None:
    data = rows_of(seed=3, size=6)

    def accuracy(prediction: Any) -> dict[str, float]:
        return {
            "accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
        }

    model = tiny("bert", dropout=0.1)
    given = {"compute_metrics": accuracy, "eval_dataset": data, **sgd(model)}
    trainer = trainer_of(
        tmp_path, method_of("arch"), model=model, given=given, eval_strategy="epoch"
    )
    trainer.train()
    lines = [line for line in trainer.state.log_history if "eval_loss" in line]
    assert [line["epoch"] for line in lines] == [1, 2]
    batch = Padded(0)(data)
    with torch.no_grad():
        output = model.eval()(**batch)
    assert lines[-1]["eval_loss"] == pytest.approx(float(output.loss), rel=1e-5)
    assert (
        lines[-1]["eval_accuracy"] == int((output.logits.argmax(-1) == batch["labels"]).sum()) / 6
    )
    assert "penalty" not in lines[-1]


@pytest.mark.parametrize("family", ["gpt2-lm", "llama-lm", "marian"])
@pytest.mark.parametrize("name", ["standard", "r3f"])
def test_the_evaluation_loss_is_the_stock_trainer_s(name: str, family: str, tmp_path: Path) -> None:
    data = rows_of(family)
    settings = {"family": family, "model": tiny(family), "given": {"eval_dataset": data}}
    stock = trainer_of(tmp_path, kind=Trainer, **settings).evaluate()["eval_loss"]
    assert trainer_of(tmp_path, method_of(name), **settings).evaluate()["eval_loss"] == stock


def test_a_sequence_to_sequence_trainer_generates(tmp_path: Path) -> None:
    model, data = tiny("marian"), rows_of("marian")
    trainer = trainer_of(
        tmp_path,
        method_of("arch"),
        "marian",
        model,
        kind=AdversarialSeq2SeqTrainer,
        given={
            "args": arguments(tmp_path, Seq2SeqTrainingArguments, predict_with_generate=True),
            **sgd(model),
        },
    )
    trainer.train()
    assert logs_of(trainer)[-1]["penalty"] > 0
    found = trainer.predict(data, max_length=9, num_beams=1).predictions
    batch = Padded(model.config.pad_token_id)(data)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.eval().generate(**inputs, max_length=9, num_beams=1)
    assert torch.equal(torch.from_numpy(found)[:, : expected.shape[1]], expected)


def test_the_mixin_composes_with_a_user_s_own_trainer(tmp_path: Path) -> None:
    class Users(Trainer):  # type: ignore[misc]
        def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            return self.optimizer

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log(logs | {"mine": float("penalty" in logs)}, *args, **kwargs)

    class Both(AdversarialMixin, Users):
        pass

    trainer = trainer_of(tmp_path, method_of("r3f"), kind=Both)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert [line["mine"] for line in logs_of(trainer)] == [
        1.0
    ] * 4  # the user's log sees the method's measures


# ---- data


class Picky(Padded):
    """A collator that takes nothing but what it knows."""

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        assert all(set(feature) == {"input_ids", "labels"} for feature in features)
        return super().__call__(features)


def _plain(rows: Rows) -> Any:
    return rows


def _columns(rows: Rows) -> Any:
    return datasets.Dataset.from_list(rows)


def _formatted(rows: Rows) -> Any:
    return datasets.Dataset.from_list(rows).with_format(None, columns=["input_ids", "labels"])


def _transformed(rows: Rows) -> Any:
    keep = ("input_ids", "labels")
    return datasets.Dataset.from_list(rows).with_transform(
        lambda batch: {name: batch[name] for name in keep}
    )


@dataclass
class Spy(Standard):
    """Standard training that writes down when it saw which samples."""

    info = replace(Standard.info, name="spy", needs=frozenset({"ids"}))
    seen: list[tuple[Clock, list[int]]] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)

    def objective(self, view: Any, batch: Any, step: Step) -> StepReport:
        ids = view.sample_ids(batch).tolist()
        self.seen.append((step.clock, ids))
        for row, real, index in zip(batch["input_ids"], batch["attention_mask"], ids, strict=True):
            self.tokens[index] = row[real == 1].tolist()
        return super().objective(view, batch, step)

    def options(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("make", [_plain, _columns, _formatted, _transformed])
@pytest.mark.parametrize("removing", [True, False])
def test_every_kind_of_dataset_gives_its_samples_their_index(
    make: Any, removing: bool, tmp_path: Path
) -> None:
    """The collator never sees the ids; nor the text column, where the Trainer is to remove what the
    model lacks.
    """
    rows = rows_of()
    extra = (
        [{**row, "text": "a text"} for row in rows]
        if removing or make in (_formatted, _transformed)
        else rows
    )
    removing = (
        removing and make is not _transformed
    )  # a transform is not looked into: the stock Trainer refuses it
    for method in (Spy(), method_of("arch")):
        trainer = trainer_of(
            tmp_path,
            method,
            data=make(extra),
            given={"data_collator": Picky(0)},
            remove_unused_columns=removing,
        )
        trainer.train()
        if isinstance(method, Spy):
            assert method.tokens == {index: row["input_ids"] for index, row in enumerate(rows)}
        else:
            assert logs_of(trainer)[-1]["penalty"] > 0


def test_a_column_that_is_called_sample_id_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "sample_id": 7 - index} for index, row in enumerate(rows_of())]
    for data in (rows, datasets.Dataset.from_list(rows)):
        with pytest.raises(ValueError, match="must not have a column 'sample_id'; rename it"):
            trainer_of(tmp_path, method_of("arch"), data=data).train()


def test_training_a_second_time_keeps_the_ids(tmp_path: Path) -> None:
    rows = rows_of()
    for data in (rows, datasets.Dataset.from_list(rows)):
        method = Spy()
        trainer = trainer_of(tmp_path, method, data=data)
        trainer.train()
        trainer.train()
        assert method.tokens == {index: row["input_ids"] for index, row in enumerate(rows)}
        assert trainer.evaluate(trainer.train_dataset)["eval_loss"] > 0


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from rows_of()


@pytest.mark.parametrize(
    "data", [Stream(), datasets.Dataset.from_list(rows_of()).to_iterable_dataset()]
)
def test_a_stream_of_samples_has_no_ids_so_only_methods_without_memory_take_it(
    data: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError,
        match=r"must have a length .* got \w*(Stream|IterableDataset); load it whole.*: standard",
    ):
        trainer_of(tmp_path, method_of("arch"), data=data, max_steps=3).train()
    trainer = trainer_of(tmp_path, method_of("r3f"), data=data, max_steps=3)
    trainer.train()
    assert [line["penalty"] > 0 for line in logs_of(trainer)] == [True] * 3


def test_a_label_the_model_has_no_class_for_is_named_before_training(tmp_path: Path) -> None:
    rows = rows_of()
    rows[5]["labels"] = 3
    with pytest.raises(
        ValueError, match=r"sample id 5 has the label 3, but the model has 3 classes \(0–2\)"
    ):
        trainer_of(tmp_path, method_of("arch"), data=rows).train()


# ---- logs


def test_logs_carry_the_method_s_measures_and_reach_tensorboard(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, method_of("arch", weight=0.5), report_to="tensorboard")
    trainer.train()
    lines = logs_of(trainer)
    measures = ("loss", "task_loss", "penalty", "delta_norm", "cache_staleness", "grad_norm")
    assert len(lines) == 4
    for line in lines:
        assert line["loss"] == pytest.approx(line["task_loss"] + 0.5 * line["penalty"], rel=1e-3)
        assert 0 < line["delta_norm"] <= 0.5 + 1e-6
    assert [line["cache_staleness"] for line in lines] == [0, 0, 1, 1]
    (events,) = tmp_path.rglob("events.out.tfevents*")
    written = EventAccumulator(str(events)).Reload()
    for name in measures:
        assert [event.value for event in written.Scalars(f"train/{name}")] == pytest.approx(
            [line[name] for line in lines], rel=1e-5
        )


def test_a_log_is_the_mean_since_the_last_one(tmp_path: Path) -> None:
    each, pairs = (
        logs_of(
            _trained(
                trainer_of(tmp_path, method_of("r3f"), num_train_epochs=2, logging_steps=every)
            )
        )
        for every in (1, 2)
    )
    for name in ("task_loss", "penalty", "delta_norm"):
        means = [(each[at][name] + each[at + 1][name]) / 2 for at in (0, 2)]
        assert [line[name] for line in pairs] == pytest.approx(means, rel=1e-5)


def _trained(trainer: Any) -> Any:
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("name", "forward", "backward"), [("standard", 1, 1), ("arch", 3, 2), ("freeat", 2, 2)]
)
def test_passes_are_counted(name: str, forward: float, backward: float, tmp_path: Path) -> None:
    """ARCH: 2 + 2 forwards in the refresh epoch, 2 in the other; 1 + 2 and 1 backwards."""
    trainer = _trained(trainer_of(tmp_path, method_of(name)))
    assert trainer.passes.per_step() == {"forward": forward, "backward": backward}
    assert trainer.timer.updates == 4
    assert trainer.timer.seconds > 0


# ---- the clock


@pytest.mark.parametrize("resume_at", [None, 1, 2, 3, 4, 5])
def test_the_method_s_clock_is_right_with_uneven_groups_and_after_resuming(
    resume_at: int | None, tmp_path: Path
) -> None:
    """Ten samples in batches of two, groups of three and of two batches; two updates an epoch."""
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 3,
    }
    spy = Spy()
    _trained(
        trainer_of(
            tmp_path, spy, data=rows_of(size=10), save_strategy="steps", save_steps=1, **settings
        )
    )
    clocks = [clock for clock, _ in spy.seen]
    assert [clock.epoch for clock in clocks] == [0] * 5 + [1] * 5 + [2] * 5
    assert [clock.step for clock in clocks] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert [clock.closes_group for clock in clocks] == [False, False, True, False, True] * 3
    for epoch in range(3):
        assert sorted(
            index for clock, ids in spy.seen if clock.epoch == epoch for index in ids
        ) == list(range(10))
    if resume_at is not None:
        again = Spy()
        trainer = trainer_of(tmp_path, again, data=rows_of(size=10), **settings)
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{resume_at}"))
        assert again.seen == [(clock, ids) for clock, ids in spy.seen if clock.step >= resume_at]


# ---- resuming


class StopAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


@every_method
@pytest.mark.parametrize("family", ["bert", pytest.param("marian", marks=pytest.mark.slow)])
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(
    name: str, family: str, tmp_path: Path
) -> None:
    """With dropout, Adam and a schedule, from an epoch's end and from its middle, into a model of
    other weights.
    """
    settings: dict[str, Any] = {
        "family": family,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "learning_rate": 1e-3,
    }
    straight = _trained(trainer_of(tmp_path / "straight", method_of(name), **settings))
    assert straight.state.global_step == 6
    cut = trainer_of(
        tmp_path / "cut",
        method_of(name),
        given={"callbacks": [StopAt(3)]},
        save_strategy="steps",
        save_steps=1,
        **settings,
    )
    assert _trained(cut).state.global_step == 3
    for step in (2, 3):
        resumed = trainer_of(
            tmp_path / "again", method_of(name), model=tiny(family, seed=step), **settings
        )
        resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / f"checkpoint-{step}"))
        assert same(weights(resumed), weights(straight))
        assert same(remembered(resumed.method), remembered(straight.method))
        assert resumed.passes == straight.passes
        assert resumed.timer.updates == 6


def saved(folder: Path, name: str = "arch", **settings: Any) -> str:
    """A run with a checkpoint at its second step."""
    _trained(trainer_of(folder, method_of(name), save_strategy="steps", save_steps=2, **settings))
    return str(folder / "checkpoint-2")


@pytest.mark.parametrize("what", ["token", "label"])
def test_a_checkpoint_of_other_data_is_refused(what: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    changed = rows_of()
    if what == "token":
        changed[3]["input_ids"][1] += 1
    else:
        changed[3]["labels"] = (changed[3]["labels"] + 1) % 2
    with pytest.raises(
        ValueError, match="the training data differs from the data of the checkpoint"
    ):
        trainer_of(tmp_path, method_of("arch"), data=changed).train(
            resume_from_checkpoint=checkpoint
        )


def test_a_checkpoint_of_another_method_or_other_options_is_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    with pytest.raises(CheckpointError, match="trained with arch, this run with r3f"):
        trainer_of(tmp_path, method_of("r3f")).train(resume_from_checkpoint=checkpoint)
    with pytest.raises(
        CheckpointError,
        match=r"options of arch differ .*: radius 0.5 → 0.25; resume with the saved",
    ):
        trainer_of(tmp_path, method_of("arch", radius=0.25)).train(
            resume_from_checkpoint=checkpoint
        )


@every_method
def test_a_checkpoint_of_the_stock_trainer_is_gone_on_from(name: str, tmp_path: Path) -> None:
    _trained(trainer_of(tmp_path, kind=Trainer, save_strategy="steps", save_steps=2))
    trainer = trainer_of(tmp_path, method_of(name))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == 4
    assert trainer.passes.steps == 2


# ---- losses that are not finite


class Poison(TrainerCallback):  # type: ignore[misc]
    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step == 1:
            nn.init.constant_(model.classifier.bias, float("nan"))


def test_standard_stops_at_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    settings = {"given": {"callbacks": [Poison()]}, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(NonFiniteLossError, match=r"step 1 \(epoch 0\), sample ids \["):
        trainer_of(tmp_path, **settings).train()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-1"


@pytest.mark.parametrize("name", ["standard", "r3f"])
def test_a_loss_that_is_not_finite_can_be_ignored_as_the_stock_trainer_does(
    name: str, tmp_path: Path
) -> None:
    given = {"callbacks": [Poison()], "on_non_finite": "ignore"}
    trainer = trainer_of(tmp_path, method_of(name), given=given)
    trainer.train()
    assert trainer.state.global_step == 4


@pytest.mark.parametrize("name", [name for name in registry if name != "standard"])
def test_a_loss_that_is_not_finite_stops_the_run_naming_step_and_samples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(
        tmp_path,
        method_of(name),
        given={"callbacks": [Poison()]},
        save_strategy="steps",
        save_steps=1,
    )
    batches: list[list[int]] = []
    step = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: (
        batches.append(inputs["sample_id"].tolist()),
        step(model, inputs, *rest),
    )[1]
    with pytest.raises(NonFiniteLossError, match=r"step 1 \(epoch 0\), sample ids \[") as caught:
        trainer.train()
    assert len(batches) == 2
    assert re.search(r"sample ids (\[[\d, ]+\])", str(caught.value)).group(1) == str(batches[1])  # type: ignore[union-attr]
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-1"


# ---- saves that fail


class SmallDisk(TrainerCallback):  # type: ignore[misc]
    """From the end of one step to its save, no file may grow beyond a limit."""

    def __init__(self, step: int, limit: int) -> None:
        self.step, self.limit = step, limit
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.before[1]))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.restore()

    def restore(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize(
    "limit", [2_000, 30_000, 120_000]
)  # config, model (92 kB) or optimizer (210 kB) does not fit
def test_a_full_disk_costs_a_save_and_not_the_run(
    limit: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SmallDisk(2, limit)
    trainer = trainer_of(
        tmp_path,
        method_of("arch"),
        given={"callbacks": [disk]},
        save_strategy="steps",
        save_steps=1,
        logging_strategy="no",
    )
    try:
        with caplog.at_level(logging.ERROR, "advreg.hf.trainer"):
            trainer.train()
    finally:
        disk.restore()
    assert trainer.state.global_step == 4
    assert sorted(folder.name for folder in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-3",
        "checkpoint-4",
    ]
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "could not save checkpoint-2"
    ]
    assert "training continues and earlier checkpoints are kept" in caplog.text
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


class Blocked(TrainerCallback):  # type: ignore[misc]
    """At one step there is a folder in the place of a file of the checkpoint."""

    def __init__(self, run: Path, step: int, name: str) -> None:
        self.step, self.place = step, run / STAGING / f"checkpoint-{step}" / name

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.place.mkdir(parents=True)


@pytest.mark.parametrize(
    "name", ["advreg_method.safetensors", "optimizer.pt", "trainer_state.json", MANIFEST_FILE]
)
def test_a_file_that_cannot_be_written_costs_a_save_and_not_the_run(
    name: str, tmp_path: Path
) -> None:
    given = {"callbacks": [Blocked(tmp_path, 2, name)]}
    trainer = _trained(
        trainer_of(tmp_path, method_of("arch"), given=given, save_strategy="steps", save_steps=1)
    )
    assert trainer.state.global_step == 4
    assert not (tmp_path / STAGING).exists()
    assert not (tmp_path / "checkpoint-2").exists()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


def test_when_the_best_checkpoint_cannot_be_saved_the_best_of_the_others_is_kept(
    tmp_path: Path,
) -> None:
    settings = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    best = {"load_best_model_at_end": True, "save_total_limit": 1, "metric_for_best_model": "step"}
    given = {"eval_dataset": rows_of(), "callbacks": [Blocked(tmp_path, 4, "trainer_state.json")]}
    trainer = trainer_of(tmp_path, method_of("r3f"), given=given, **settings, **best)
    evaluate = trainer.evaluate
    trainer.evaluate = lambda *a, **k: (
        evaluate(*a, **k) | {"eval_step": trainer.state.global_step}
    )  # later is better
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]


def test_an_error_that_is_no_failed_write_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("expected all tensors to be on the same device")

    trainer = trainer_of(tmp_path, method_of("r3f"), save_strategy="steps", save_steps=1)
    monkeypatch.setattr(trainer, "_save_rng_state", broken)
    with pytest.raises(RuntimeError, match="same device"):
        trainer.train()


# ---- models and settings


@every_method
def test_lora_trains_its_own_weights_and_no_others(name: str, tmp_path: Path) -> None:
    model = peft.get_peft_model(
        tiny("bert"), peft.LoraConfig(target_modules=["query", "value"], task_type="SEQ_CLS")
    )
    before = {
        name: (value.detach().clone(), value.requires_grad)
        for name, value in model.named_parameters()
    }
    trainer = _trained(trainer_of(tmp_path, method_of(name), model=model, given=sgd(model, 0.5)))
    moved = {
        name for name, value in weights(trainer).items() if not torch.equal(value, before[name][0])
    }
    trained = {name for name, (_, requires) in before.items() if requires}
    assert moved == {name for name in trained}
    assert {name for name, value in model.named_parameters() if value.requires_grad} == trained


@every_method
def test_frozen_parameters_stay_frozen(name: str, tmp_path: Path) -> None:
    model = tiny("bert")
    frozen = {
        name for name, _ in model.named_parameters() if "embeddings" in name or "layer.0" in name
    }
    for name_, value in model.named_parameters():
        value.requires_grad_(name_ not in frozen)
    before = {name_: value.detach().clone() for name_, value in model.named_parameters()}
    trainer = _trained(trainer_of(tmp_path, method_of(name), model=model, given=sgd(model, 0.5)))
    still = {
        name_ for name_, value in weights(trainer).items() if torch.equal(value, before[name_])
    }
    assert still == frozen
    assert {name_ for name_, value in model.named_parameters() if not value.requires_grad} == frozen


@pytest.mark.parametrize(
    "name", [name for name in registry if "dropout" not in registry[name].info.needs]
)
def test_gradient_checkpointing_changes_memory_and_nothing_else(name: str, tmp_path: Path) -> None:
    """`gradient_checkpointing=True` alone is enough: non-reentrant is made the default."""
    found = []
    for keywords in ({}, {"gradient_checkpointing": True}):
        model = tiny("bert", dropout=0.0)
        found.append(
            weights(
                _trained(
                    trainer_of(tmp_path, method_of(name), model=model, given=sgd(model), **keywords)
                )
            )
        )
    assert model.is_gradient_checkpointing
    assert all(
        torch.allclose(value, found[1][name_], atol=1e-6) for name_, value in found[0].items()
    )


def test_other_keywords_of_checkpointing_do_not_bring_torch_s_reentrant_default_back(
    tmp_path: Path,
) -> None:
    keywords = {"preserve_rng_state": True}
    trainer = trainer_of(
        tmp_path,
        method_of("arch"),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs=keywords,
    )
    trainer.train()
    assert trainer.args.gradient_checkpointing_kwargs == {
        "preserve_rng_state": True
    }  # the user's are left alone
    assert logs_of(trainer)[-1]["penalty"] > 0


def test_reentrant_checkpointing_is_refused_before_the_first_step(tmp_path: Path) -> None:
    keywords = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }
    trainer = trainer_of(tmp_path, method_of("r3f"), **keywords)
    with pytest.raises(UnsupportedError, match=r"_kwargs=\{'use_reentrant': False\}.*: .*standard"):
        trainer.train()
    assert trainer.state.global_step == 0
    trainer_of(tmp_path, **keywords).train()  # the stock step needs no gradient of the embeddings


def test_several_gpus_in_one_process_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, method_of("r3f"))
    trainer.args._n_gpu = 4
    with pytest.raises(
        ValueError, match="one GPU per process, got a process with 4; launch with torchrun"
    ):
        trainer.train()


def test_an_optimizer_that_updates_inside_the_backward_pass_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, method_of("r3f"))
    trainer.args.optim = OptimizerNames.LOMO
    with pytest.raises(
        ValueError, match="updates the weights inside the backward pass; choose adamw_torch"
    ):
        trainer.train()


def test_ways_to_spread_the_weights_that_cannot_work_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(tmp_path, method_of("r3f"))
    trainer.is_fsdp_enabled = True
    with pytest.raises(
        ValueError, match="fsdp_config must have 'version': 2, got 1, which hides the weights"
    ):
        trainer.train()
    monkeypatch.setattr(type(trainer.accelerator), "is_fsdp2", True)
    trainer.args.fp16 = True
    with pytest.raises(
        ValueError, match=r"fp16 must be off under FSDP: .* would wait forever; train in bf16"
    ):
        trainer.train()


def test_the_site_reaches_the_task(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, method_of("r3f"), given={"site": "block"})
    trainer.train()
    assert trainer.task.streams.injection.sites == {"tokens": trainer.model.bert.embeddings}


# ---- in processes of their own

PREAMBLE = """
import sys, tempfile
from pathlib import Path
from test_trainer import *
from test_trainer import _trained
folder = Path(tempfile.mkdtemp())
"""


def run_apart(code: str, folder: Path, *launcher: str) -> list[str]:
    """Run code in a fresh process; the lines it prints after the word FOUND."""
    script = folder / "script.py"
    script.write_text(PREAMBLE + code)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": paths, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    return [
        line.removeprefix("FOUND ")
        for line in result.stdout.splitlines()
        if line.startswith("FOUND ")
    ]


PRECISIONS = """
for half in (False, True):
    first = logs_of(_trained(trainer_of(folder, method_of("arch"), bf16=half)))[0]
    print("FOUND", first["task_loss"], first["penalty"], flush=True)
"""


@pytest.mark.slow
def test_mixed_precision_trains_close_to_full_precision(tmp_path: Path) -> None:
    """In a process of its own: some CPUs announce bf16 instructions that they cannot run."""
    full, half = (
        [float(number) for number in line.split()] for line in run_apart(PRECISIONS, tmp_path)
    )
    assert half != full
    assert half[0] == pytest.approx(full[0], rel=0.02)
    assert half[1] == pytest.approx(full[1], rel=0.2)


PROCESSES = """
import os
share = 8 // int(os.environ.get("WORLD_SIZE", 1))
for family in ("bert", "gpt2-lm", "marian"):
    model = tiny(family, dropout=0.0)
    sizes = {"per_device_train_batch_size": share, "per_device_eval_batch_size": share}  # the whole data at a step
    given = {"eval_dataset": rows_of(family), **sgd(model)}
    trainer = trainer_of(folder, Standard(), family, model, given=given, **sizes)
    trainer.train()  # not after an evaluation: the stock Trainer would then leave DDP out
    loss = trainer.evaluate()["eval_loss"]
    stock = trainer_of(folder, None, family, trainer.model, None, Trainer, given, **sizes)
    stock = stock.evaluate()["eval_loss"]
    total = sum(float(value.double().abs().sum()) for value in weights(trainer).values())
    if trainer.args.process_index == 0:
        print("FOUND", family, loss, stock, total, flush=True)
"""


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_evaluate_as_the_stock_trainer(
    tmp_path: Path,
) -> None:
    """Evaluation is left to the stock trainer, whose loss doubles with two processes where a model
    ignores the number of items.
    """
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    one, two = (run_apart(PROCESSES, tmp_path, *ways) for ways in ((), launcher))
    assert [line.split()[0] for line in one] == ["bert", "gpt2-lm", "marian"]
    for alone, together in zip(one, two, strict=True):
        (_, *losses, total), (_, *other_losses, other_total) = alone.split(), together.split()
        assert losses[0] == losses[1]
        assert other_losses[0] == other_losses[1]
        assert float(other_total) == pytest.approx(float(total), rel=1e-6)


def test_a_refresh_that_never_comes_is_pointed_out_when_training_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "advreg.hf.trainer"):
        trainer_of(
            tmp_path, method_of("arch", refresh_every=2), num_train_epochs=3, save_strategy="no"
        ).train()
        assert not caplog.records
        trainer_of(
            tmp_path, method_of("arch", refresh_every=9), num_train_epochs=3, save_strategy="no"
        ).train()
    assert [record.getMessage()[:15] for record in caplog.records] == ["refresh_every=9"]


def test_standard_says_once_that_a_model_ignores_the_items_of_its_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stock trainer then doubles loss and gradient; advreg's methods do not."""
    losses = {}
    for name, steps in (("standard", 1), ("standard", 2), ("r3f", 1), ("r3f", 2)):
        caplog.clear()
        fields = {
            "per_device_train_batch_size": 8 // steps,
            "gradient_accumulation_steps": steps,
            "max_steps": 1,
        }
        trainer = trainer_of(tmp_path, method_of(name), model=tiny("bert", dropout=0.0), **fields)
        trainer.train()
        losses[name, steps] = logs_of(trainer)[0].get("task_loss", logs_of(trainer)[0]["loss"])
        told = [
            line
            for line in caplog.messages
            if "BertForSequenceClassification ignores num_items_in_batch" in line
        ]
        assert len(told) == (name == "standard" and steps == 2)
    assert losses["standard", 2] == pytest.approx(2 * losses["standard", 1], rel=1e-4)
    assert losses["r3f", 2] == pytest.approx(losses["r3f", 1], rel=1e-4)
