"""The loss that is trained is the user's: its own compute_loss in every step, and the denominators
of accumulation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import Trainer

from advreg.methods import create, registry
from works import data, own_losses
from works.cases import UPDATES, ByTrainer, Setting, without_effect
from works.head_cases import answered, bert
from works.own_losses import LossWithoutSuper, LossWithSuper, WeighsClasses, loss_function
from works.traces import Trace, require_identical, require_like
from works.trainer_cases import BERT, MIXTRAL, built, of


@pytest.fixture(autouse=True)
def _dropout_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Drop refuses a model without dropout, where its penalty is 0, and so is held to stock
    there.
    """
    for module in ("view.view", "guards.requirements"):
        monkeypatch.setattr(f"advreg.hf.{module}.has_dropout", lambda *_, **__: True)


every_method = pytest.mark.parametrize("method", registry)
with_delta = pytest.mark.parametrize(
    "method", [name for name in registry if registry[name].info.needs]
)
TWO_BY_TWO = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}


def first_loss(trace: Trace) -> float:
    return trace.logged("loss")[0]


@every_method
@pytest.mark.parametrize("way", [LossWithoutSuper, LossWithSuper, loss_function])
def test_the_users_loss_is_computed_in_every_step(way: Any, method: str, tmp_path: Path) -> None:
    if isinstance(way, type):
        train = ByTrainer(of("bert", data.classified), base=way)
    else:
        train = ByTrainer(of("bert", data.classified, compute_loss_func=way))
    own_losses.CALLS.clear()
    ours = without_effect(method)
    train(ours, Setting(tmp_path))
    copies = 2 if ours.options().get("both_losses") else 1
    points = ours.passes().backward if "repeats_backward" in ours.info.traits else 1
    assert len(own_losses.CALLS) == copies * points * UPDATES


@with_delta
def test_the_penalty_comes_on_top_of_the_users_loss(method: str, tmp_path: Path) -> None:
    """With a weight that counts; ``task_loss`` in the log is the user's."""
    train = ByTrainer(of("bert", data.classified), base=LossWithoutSuper, fields={"max_steps": 1})
    stock = train(None, Setting(tmp_path / "stock"))
    ours = train(create(method), Setting(tmp_path))
    if "predictions" in registry[method].info.needs:
        assert ours.logged("task_loss") == pytest.approx(stock.logged("loss"), rel=1e-6)
        expected = ours.logged("task_loss")[0] + ours.logged("penalty")[0]
        assert first_loss(ours) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", ["standard", "r3f"])
def test_the_loss_of_the_router_is_trained(method: str, tmp_path: Path) -> None:
    given = built(
        transformers.MixtralForCausalLM, transformers.MixtralConfig, MIXTRAL, data.continued
    )
    without = built(
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig,
        MIXTRAL | {"output_router_logits": False},
        data.continued,
    )
    with_router, plain = (
        first_loss(ByTrainer(way)(without_effect(method), Setting(tmp_path / str(number))))
        for number, way in enumerate((given, without))
    )
    assert with_router - plain > 1.5  # with k experts of equal load the router's loss is k


@pytest.mark.parametrize("method", ["standard", "r3f"])
def test_class_weights_of_the_model_are_trained(method: str, tmp_path: Path) -> None:
    weighted = built(WeighsClasses, transformers.BertConfig, BERT, data.classified)
    plain = built(
        transformers.BertForSequenceClassification, transformers.BertConfig, BERT, data.classified
    )
    losses = [
        first_loss(ByTrainer(way)(without_effect(method), Setting(tmp_path / str(number))))
        for number, way in enumerate((weighted, plain))
    ]
    assert abs(losses[0] - losses[1]) > 0.1


# ---- denominators under gradient accumulation


@pytest.mark.parametrize(
    "given",
    [of("bert", data.classified), of("llama-lm", data.continued), of("marian", data.translated)],
    ids=[
        "a model that ignores the number of items",
        "one that divides by it",
        "an encoder and decoder",
    ],
)
@with_delta
def test_the_size_of_micro_batches_does_not_change_what_a_method_trains(
    method: str, given: Callable[[Setting], dict[str, Any]], tmp_path: Path
) -> None:
    train = ByTrainer(given)
    whole = train(None, Setting(tmp_path / "whole"))
    halves = train(without_effect(method), Setting(tmp_path / "halves", fields=TWO_BY_TWO))
    require_like(halves, whole)


def test_standard_follows_stock_where_a_model_ignores_the_number_of_items(tmp_path: Path) -> None:
    """Stock then trains on the sum of the micro-batches' means."""
    train = ByTrainer(of("bert", data.classified))
    stock, ours, whole = (
        train(method, Setting(tmp_path / str(number), fields=fields))
        for number, (method, fields) in enumerate(
            [(None, TWO_BY_TWO), (create("standard"), TWO_BY_TWO), (None, {})]
        )
    )
    require_identical(ours, stock)
    assert first_loss(stock) == pytest.approx(2 * first_loss(whole), rel=1e-6)


@every_method
def test_a_loss_of_the_users_is_taken_as_the_stock_step_takes_it(
    method: str, tmp_path: Path
) -> None:
    """Under accumulation stock divides what its own rules say it must, whatever the user's function
    returned.
    """
    train = ByTrainer(of("bert", data.classified), base=LossWithoutSuper)
    stock = train(None, Setting(tmp_path / "stock", fields=TWO_BY_TWO))
    require_like(train(without_effect(method), Setting(tmp_path, fields=TWO_BY_TWO)), stock)


@every_method
def test_hooks_and_shadows_are_gone_after_training(method: str, tmp_path: Path) -> None:
    trainer = ByTrainer(of("bert", data.classified)).trainer(
        without_effect(method), Setting(tmp_path)
    )
    trainer.train()
    assert "compute_loss" not in vars(trainer)
    assert type(trainer).compute_loss is Trainer.compute_loss
    assert not any(
        module._forward_pre_hooks or module._forward_hooks for module in trainer.model.modules()
    )


@pytest.mark.parametrize("method", ["standard", "freelb", "freeat"])
def test_a_loss_without_labels_is_averaged_over_micro_batches_as_by_stock(
    method: str, tmp_path: Path
) -> None:
    """Question answering has positions in place of labels."""
    train = ByTrainer(bert("QuestionAnswering", answered, num_labels=2))
    stock = train(None, Setting(tmp_path / "stock", fields=TWO_BY_TWO))
    require_like(train(without_effect(method), Setting(tmp_path, fields=TWO_BY_TWO)), stock)
