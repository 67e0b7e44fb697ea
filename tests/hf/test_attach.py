"""A method on a trainer that exists: what changes, what stays, and what taking it off gives back."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import GradientState
from torch import Tensor
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import advreg
from advreg.hf.attach import attach, attachment_of, detach
from advreg.hf.guards.capability import UnsupportedError
from advreg.hf.trainer import AdversarialSeq2SeqTrainer, AdversarialTrainer
from advreg.methods import Method, create
from observe import Padded, features_of
from tiny_models import tiny, tiny_batch
from tiny_runs import ARCH, end_of, same_end, stock_trainer, tiny_trainer
from works.own_losses import CALLS, LossWithoutSuper, LossWithSuper

METHODS = {"standard": {}, "r3f": {"noise_scale": 0.1}, "freelb": {"radius": 0.5}, "arch": ARCH}


def method(name: str = "r3f") -> Method:
    return create(name, **METHODS[name])


def bare(folder: Path, kind: Any = Trainer, **more: Any) -> Any:
    """A trainer without a method."""
    torch.manual_seed(0)
    model = more.pop("model", None) or tiny("bert", dropout=0.1)
    own = {name: more.pop(name) for name in ("callbacks", "model_init") if name in more}
    fields = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "no",
        "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True, **more,
    }  # fmt: skip
    return kind(
        model=None if "model_init" in own else model,
        args=TrainingArguments(**fields),
        train_dataset=features_of(tiny_batch("bert", batch=8)),
        data_collator=Padded(model.config.pad_token_id),
        **own,
    )


def trained(trainer: Any) -> Any:
    torch.manual_seed(1)
    trainer.train()
    return trainer


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


# ---- it trains as AdversarialTrainer does


@pytest.mark.parametrize("name", METHODS)
def test_an_attached_method_trains_as_the_adversarial_trainer_does(
    name: str, tmp_path: Path
) -> None:
    ours = trained(tiny_trainer(tmp_path / "a", method(name), tiny("bert", dropout=0.1)))
    trainer = stock_trainer(tmp_path / "b", model=tiny("bert", dropout=0.1))
    attached = trained(attach(trainer, method(name)))
    assert attached is trainer
    assert type(attached) is Trainer
    attached.method = attached.advreg.method
    assert same_end(end_of(ours), end_of(attached))
    penalties = [[line.get("penalty") for line in t.state.log_history] for t in (ours, attached)]
    assert penalties[0] == penalties[1]


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    def one(folder: Path) -> Any:
        return attach(stock_trainer(folder, model=tiny("bert", dropout=0.1)), method("arch"))

    whole, again = trained(one(tmp_path)), one(tmp_path / "again")
    torch.manual_seed(1)  # the order of the samples
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for trainer in (whole, again):
        trainer.method = trainer.advreg.method
    assert same_end(end_of(whole), end_of(again))


def test_a_sequence_to_sequence_trainer_takes_a_method(tmp_path: Path) -> None:
    def given(folder: str) -> dict[str, Any]:
        torch.manual_seed(0)
        model = tiny("marian", dropout=0.1)
        args = Seq2SeqTrainingArguments(
            str(tmp_path / folder), max_steps=3, report_to="none", use_cpu=True, save_strategy="no"
        )
        rows = features_of(tiny_batch("marian", batch=8))
        collator = Padded(model.config.pad_token_id)
        return {"model": model, "args": args, "train_dataset": rows, "data_collator": collator}

    ours = trained(AdversarialSeq2SeqTrainer(**given("a"), method=method()))
    attached = trained(attach(Seq2SeqTrainer(**given("b")), method()))
    assert type(attached) is Seq2SeqTrainer
    assert same_end(weights(ours), weights(attached))


def test_an_sft_trainer_takes_a_method(tmp_path: Path) -> None:
    from trl import SFTTrainer

    from works.cases import Setting
    from works.trl_cases import CASES

    case: Any = next(case for case in CASES if case.name == "SFTTrainer, text").train
    setting = Setting(tmp_path)
    ours, stock = (trained(case.trainer(each, setting)) for each in (method(), None))
    attached = trained(attach(case.trainer(None, setting), method()))
    assert type(attached) is SFTTrainer
    assert same_end(weights(ours), weights(attached))
    assert not same_end(weights(stock), weights(attached))
    assert all(
        "mean_token_accuracy" in line for line in attached.state.log_history if "loss" in line
    )


def test_a_trainer_whose_loss_is_not_supported_is_refused_with_the_reason(tmp_path: Path) -> None:
    import sentence_transformers

    from works.cases import ByTrainer, Setting
    from works.sentence_cases import bi_encoder

    arguments = sentence_transformers.SentenceTransformerTrainingArguments
    by = ByTrainer(bi_encoder, sentence_transformers.SentenceTransformerTrainer, arguments)
    trainer, stock = (by.trainer(None, Setting(tmp_path)) for _ in range(2))
    before = weights(trainer)
    attach(trainer, method())
    with pytest.raises(
        UnsupportedError, match=r"gives no token embeddings .* choose a method that"
    ):
        trainer.train()
    assert same_end(weights(trainer), before)
    detach(trainer)
    assert same_end(weights(trained(trainer)), weights(trained(stock)))  # trains without it


# ---- overrides of the user win


@pytest.mark.parametrize("kind", [LossWithSuper, LossWithoutSuper])
def test_a_loss_that_a_subclass_overrides_is_the_task_loss(kind: Any, tmp_path: Path) -> None:
    plain = trained(bare(tmp_path, kind, max_steps=1))
    CALLS.clear()
    attached = trained(attach(bare(tmp_path, kind, max_steps=1), method()))
    assert CALLS
    assert isinstance(attached, kind)
    first = [trainer.state.log_history[0] for trainer in (plain, attached)]
    assert first[1]["task_loss"] == pytest.approx(first[0]["loss"], rel=0.5)  # other dropout masks
    assert first[1]["penalty"] > 0


def test_methods_that_were_set_on_the_instance_are_called(tmp_path: Path) -> None:
    trainer, calls = bare(tmp_path), []
    step, loss = trainer.training_step, trainer.compute_loss
    trainer.training_step = lambda *args: (calls.append("step"), step(*args))[1]
    trainer.compute_loss = lambda *args, **more: (calls.append("loss"), loss(*args, **more))[1]
    own = trainer.training_step, trainer.compute_loss
    trained(attach(trainer, method()))
    assert calls[:2] == ["step", "loss"]
    assert calls.count("step") == 4
    assert trainer.state.log_history[0]["penalty"] > 0
    detach(trainer)
    assert (trainer.training_step, trainer.compute_loss) == own


def test_methods_that_a_subclass_overrides_are_called(tmp_path: Path) -> None:
    calls: list[str] = []

    class Users(Trainer):
        def training_step(self, *args: Any) -> Any:
            calls.append("training_step")
            return super().training_step(*args)

        def get_train_dataloader(self) -> Any:
            calls.append("get_train_dataloader")
            return super().get_train_dataloader()

        def floating_point_ops(self, inputs: Any) -> int:
            return 7

        def log(self, logs: dict[str, float], *args: Any) -> None:
            calls.append("log with a penalty" if "penalty" in logs else "log")
            super().log(logs, *args)

    trainer = trained(attach(bare(tmp_path, Users, num_train_epochs=1), method()))
    expected = {"training_step": 2, "get_train_dataloader": 1, "log with a penalty": 2, "log": 1}
    assert {name: calls.count(name) for name in expected} == expected
    assert trainer.state.total_flos == 2 * 7


# ---- once, again, and off


def test_the_same_method_again_has_no_effect_and_another_replaces_it(tmp_path: Path) -> None:
    trainer, first, second = bare(tmp_path), method(), method()
    attached = attachment_of(attach(trainer, first))
    assert attachment_of(attach(trainer, first)) is attached
    assert attachment_of(attach(trainer, first, site="block")) is not attached
    step = trainer.training_step
    attach(trainer, second)
    assert attachment_of(trainer).method is second
    assert trainer.training_step != step
    assert detach(trainer) is trainer
    assert detach(trainer) is trainer
    assert attachment_of(trainer) is None


def test_detaching_leaves_nothing(tmp_path: Path) -> None:
    def state(trainer: Any) -> dict[str, Any]:
        return dict(vars(trainer)) | dict(vars(trainer.callback_handler))

    trainer = bare(tmp_path)
    before = state(trainer)
    detach(attach(trainer, method("arch")))
    assert state(trainer) == before
    stock = trained(bare(tmp_path))
    assert same_end(weights(trained(trainer)), weights(stock))


def test_a_trained_trainer_has_its_data_and_arguments_back(tmp_path: Path) -> None:
    trainer = bare(tmp_path)
    given = trainer.train_dataset, trainer.data_collator, trainer.args, trainer.train
    detach(trained(attach(trainer, method("arch"))))
    assert (trainer.train_dataset, trainer.data_collator, trainer.args, trainer.train) == given


def test_a_hook_that_was_replaced_since_is_named(tmp_path: Path) -> None:
    trainer = attach(bare(tmp_path), method())
    step = trainer.training_step
    trainer.training_step = lambda *args: step(*args)
    with pytest.raises(RuntimeError, match="the trainer's training_step must be what attach set"):
        detach(trainer)
    trainer.training_step = step
    assert attachment_of(detach(trainer)) is None


def test_after_the_training_has_begun_it_is_too_late(tmp_path: Path) -> None:
    errors: list[str] = []

    class Late(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for change in (lambda: attach(trainer, method()), lambda: detach(trainer)):
                with pytest.raises(RuntimeError) as caught:
                    change()
                errors.append(str(caught.value))

    trainer = attach(bare(tmp_path, callbacks=[Late()], max_steps=1), method())
    trainer.train()
    assert errors[0].startswith("attach must be called before train(), got a trainer at step 1;")
    assert errors[1] == "detach must not be called during train(); call it afterwards"
    with pytest.raises(
        RuntimeError, match=r"before train\(\), got a trainer at step 1; make a new"
    ):
        attach(trainer, method())


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"method": "r3f"}, r"method must be a method of advreg, such as RDrop\(\), got 'r3f'"),
        ({"trainer": 3}, "must be a transformers.Trainer, got int; .* use advreg.prepare"),
        ({"on_non_finite": "skp"}, "on_non_finite must be one of .*, got 'skp'"),
    ],
)
def test_what_cannot_be_attached_is_named(given: Any, error: str, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"trainer": bare(tmp_path), "method": method()}
    with pytest.raises((TypeError, ValueError), match=error):
        attach(**usual | given)


# ---- model_init, copies and pickles


def test_model_init_works(tmp_path: Path) -> None:
    def model_init() -> Any:
        torch.manual_seed(0)
        return tiny("bert", dropout=0.1)

    ends = []
    for _ in range(2):
        trainer = attach(bare(tmp_path, model_init=model_init), method("arch"))
        ends.append(weights(trained(trainer)))
    assert same_end(*ends)
    assert trainer.state.log_history[-2]["penalty"] > 0


def test_a_copy_trains_by_itself(tmp_path: Path) -> None:
    trainer = attach(bare(tmp_path), method("arch"))
    twin = copy.deepcopy(trainer)
    assert twin.advreg is not trainer.advreg
    assert twin.advreg.trainer is twin
    before = weights(trainer)
    trained(twin)
    assert same_end(weights(trainer), before)
    assert same_end(weights(trained(trainer)), weights(twin))


@pytest.mark.parametrize("makes", [stock_trainer, tiny_trainer])
def test_a_pickled_trainer_trains_as_the_first_one_does(makes: Any, tmp_path: Path) -> None:
    """The stock trainer can be pickled until a training has left weak references in accelerate."""
    GradientState().dataloader_references = [None]
    model = tiny("bert", dropout=0.1)
    trainer = attach(makes(tmp_path, model=model, save_strategy="no"), method("arch"))
    twin = pickle.loads(pickle.dumps(trainer))
    assert twin.advreg.trainer is twin
    assert twin.training_step == twin.advreg.steps.training_step
    assert same_end(weights(trained(twin)), weights(trained(trainer)))


def test_the_adversarial_trainer_is_a_trainer_with_a_method_attached(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, method())
    assert isinstance(trainer, AdversarialTrainer)
    replaced = attach(trainer, method("freelb"))
    assert replaced.method is attachment_of(trainer).method
    detach(trainer)
    assert same_end(weights(trained(trainer)), weights(trained(stock_trainer(tmp_path))))


def test_it_is_exported() -> None:
    assert advreg.attach is attach
    assert advreg.detach is detach
