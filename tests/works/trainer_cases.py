"""The Trainer and the Seq2SeqTrainer, and the losses that users train with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch.utils.data import IterableDataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from tiny_models import LABELS, tiny
from works import data
from works.cases import ByTrainer, Case, Setting
from works.data import Collated
from works.own_losses import LossWithoutSuper, LossWithSuper, WeighsClasses, loss_function

GROUP = "Trainers and losses"
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = SMALL | {
    "intermediate_size": 64,
    "num_labels": LABELS,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
MIXTRAL = SMALL | {
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 1.0,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


def of(
    family: str, rows: Callable[[], Any], prepares: bool = False, **more: Any
) -> Callable[[Setting], dict[str, Any]]:
    """A family of tiny_models on these rows."""

    def given(setting: Setting) -> dict[str, Any]:
        model = tiny(family, dropout=setting.dropout)
        collator = Collated(model.config.pad_token_id, model if prepares else None)
        return {"model": model, "train_dataset": rows(), "data_collator": collator, **more}

    return given


def built(
    model: type, config: type, settings: dict[str, Any], rows: Callable[[], Any], **more: Any
) -> Callable[[Setting], dict[str, Any]]:
    """A model from its configuration on these rows."""

    def given(setting: Setting) -> dict[str, Any]:
        made = config(**settings)
        for name in made.to_dict():
            if "dropout" in name:
                setattr(made, name, setting.dropout)
        return {
            "model": model(made).train(),
            "train_dataset": rows(),
            "data_collator": Collated(),
            **more,
        }

    return given


class Streamed(IterableDataset):  # type: ignore[type-arg]
    """Rows without a number."""

    def __iter__(self) -> Any:
        return iter(data.classified())


NEFTUNE = (
    "neftune_noise_alpha=5.0 adds its own noise to the embeddings; leave neftune_noise_alpha out"
)


def trainer_case(
    name: str, given: Any, is_fast: bool = False, refused: Any = None, **more: Any
) -> Case:
    return Case(GROUP, name, ByTrainer(given, **more), refused or {}, is_fast)


CASES = [
    trainer_case("Trainer, classification (BERT)", of("bert", data.classified), is_fast=True),
    trainer_case(
        "Trainer, causal language model (Llama)", of("llama-lm", data.continued), is_fast=True
    ),
    trainer_case(
        "Trainer, gradient accumulation (Llama)",
        of("llama-lm", data.continued),
        fields={"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
        is_fast=True,
    ),
    trainer_case(
        "Seq2SeqTrainer (Marian)",
        of("marian", data.translated),
        base=Seq2SeqTrainer,
        arguments=Seq2SeqTrainingArguments,
        is_fast=True,
    ),
    trainer_case(
        "Seq2SeqTrainer (T5)",
        of("t5", data.translated),
        base=Seq2SeqTrainer,
        arguments=Seq2SeqTrainingArguments,
    ),
    trainer_case(
        "`label_smoothing_factor`",
        of("bert", data.classified),
        fields={"label_smoothing_factor": 0.1},
        is_fast=True,
    ),
    trainer_case(
        "`label_smoothing_factor`, Seq2SeqTrainer",
        of("marian", data.translated, prepares=True),
        base=Seq2SeqTrainer,
        arguments=Seq2SeqTrainingArguments,
        fields={"label_smoothing_factor": 0.1},
    ),
    trainer_case(
        "`compute_loss_func`",
        of("bert", data.classified, compute_loss_func=loss_function),
        is_fast=True,
    ),
    trainer_case(
        "`compute_loss` overridden, with `super()`", of("bert", data.classified), base=LossWithSuper
    ),
    trainer_case(
        "`compute_loss` overridden, without `super()`",
        of("bert", data.classified),
        base=LossWithoutSuper,
        is_fast=True,
    ),
    trainer_case(
        "class weights inside `forward`",
        built(WeighsClasses, transformers.BertConfig, BERT, data.classified),
        is_fast=True,
    ),
    trainer_case(
        "mixture of experts with the router's loss (Mixtral)",
        built(transformers.MixtralForCausalLM, transformers.MixtralConfig, MIXTRAL, data.continued),
        is_fast=True,
    ),
    trainer_case(
        "`neftune_noise_alpha`",
        of("bert", data.classified),
        fields={"neftune_noise_alpha": 5.0},
        refused=dict.fromkeys(("perturbation", "predictions"), NEFTUNE),
        is_fast=True,
    ),
    trainer_case(
        "`train_dataset` without a length",
        of("bert", Streamed),
        refused={
            "ids": "train_dataset must have a length and items by index, got Streamed; load it whole"
        },
    ),
]
