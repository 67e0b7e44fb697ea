"""Prediction heads and families of models, under the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn
from transformers import DataCollatorWithFlattening
from transformers.modeling_outputs import SequenceClassifierOutput

from tiny_models import LABELS, tiny
from works import data, vision_language
from works.cases import ByTrainer, Case, Setting
from works.data import Collated
from works.trainer_cases import BERT, built, of

HEADS, FAMILIES, ADAPTERS, LAYOUTS = "Prediction heads", "Families", "Adapters", "Batches"
BART = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.2,
    "num_labels": LABELS,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
T5 = {
    "vocab_size": 50,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    "num_labels": LABELS,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
XLNET = {
    "vocab_size": 50,
    "d_model": 32,
    "n_layer": 2,
    "n_head": 2,
    "d_inner": 64,
    "num_labels": LABELS,
    "initializer_range": 0.2,
}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": LABELS,
    "initializer_range": 0.2,
}


def bert(
    head: str, rows: Callable[[], Any], **settings: Any
) -> Callable[[Setting], dict[str, Any]]:
    return built(
        getattr(transformers, f"BertFor{head}"), transformers.BertConfig, BERT | settings, rows
    )


# ---- rows of tasks that others do not share


def answered() -> list[data.Row]:
    return [
        {"input_ids": row, "start_positions": 1, "end_positions": len(row) - 2}
        for row in data.ids()
    ]


def chosen() -> list[data.Row]:
    """Two candidates for each row, of one length."""
    return [
        {"input_ids": [row[:4], row[-4:]], "attention_mask": [[1] * 4] * 2, "labels": sum(row) % 2}
        for row in data.ids()
    ]


def pretrained() -> list[data.Row]:
    return [{**row, "next_sentence_label": sum(row["input_ids"]) % 2} for row in data.masked()]


def ended() -> list[data.Row]:
    """With the end of a text, which BART's and T5's classifiers read."""
    return [
        {"input_ids": [*row["input_ids"], 2], "labels": row["labels"]} for row in data.classified()
    ]


def pictured() -> list[data.Row]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": row % LABELS}
        for row in range(data.ROWS)
    ]


# ---- models of one's own


class OwnHead(transformers.BertPreTrainedModel):  # type: ignore[misc]
    """A head of the user's on a pretrained encoder, with a loss of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.score(states.mean(1))
        loss = (
            None
            if labels is None
            else nn.functional.cross_entropy(logits, labels, label_smoothing=0.2)
        )
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Plain(nn.Module):
    """A module that is no PreTrainedModel."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.encoder = transformers.BertModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        logits = self.score(self.encoder(input_ids, attention_mask=attention_mask).pooler_output)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PlainWithConfig(Plain):
    """The same with what shows its embeddings."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.config = config

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embeddings.word_embeddings


def adapted(
    config: Any, family: str, rows: Callable[[], Any]
) -> Callable[[Setting], dict[str, Any]]:
    def given(setting: Setting) -> dict[str, Any]:
        model = tiny(family, dropout=setting.dropout)
        made = peft.get_peft_model(model, config())
        return {
            "model": made,
            "train_dataset": rows(),
            "data_collator": Collated(model.config.pad_token_id),
        }

    return given


def case(
    group: str,
    name: str,
    given: Callable[[Setting], dict[str, Any]],
    refused: Mapping[str, str] | None = None,
    is_fast: bool = False,
    **fields: Any,
) -> Case:
    return Case(group, name, ByTrainer(given, fields=fields), refused or {}, is_fast)


def no_logits(name: str) -> str:
    return f"the head of {name} has no single tensor `logits` to compare"


def other_layout(name: str, embeddings: tuple[int, ...], ids: tuple[int, ...]) -> str:
    return f"{name} has embeddings {embeddings} for token ids {ids}; name a module that outputs (B, T, D) as site="


def no_classes(found: str) -> str:
    return f"ols needs one class for each prediction, got {found}; use temporal"


def no_tokens(what: str) -> str:
    return f"ViTForImageClassification.get_input_embeddings() gives no token embeddings to {what}"


HEAD_CASES = [
    case(HEADS, "token classification", bert("TokenClassification", data.tagged)),
    case(
        HEADS,
        "several labels at once",
        bert(
            "SequenceClassification", data.several_labels, problem_type="multi_label_classification"
        ),
        {"ols": no_classes("several labels at once")},
    ),
    case(
        HEADS,
        "regression",
        bert("SequenceClassification", data.valued, num_labels=1),
        {"ols": no_classes("a regression")},
        is_fast=True,
    ),
    case(
        HEADS,
        "regression, three outputs",
        bert("SequenceClassification", lambda: data.valued(3), problem_type="regression"),
        {"ols": no_classes("a regression")},
    ),
    case(HEADS, "next sentence", bert("NextSentencePrediction", lambda: data.classified(2))),
    case(HEADS, "masked language model", bert("MaskedLM", data.masked)),
    case(
        HEADS,
        "own head and loss (PreTrainedModel)",
        built(OwnHead, transformers.BertConfig, BERT, data.classified),
    ),
    case(
        HEADS,
        "question answering",
        bert("QuestionAnswering", answered, num_labels=2),
        {"predictions": no_logits("BertForQuestionAnswering")},
        is_fast=True,
    ),
    case(
        HEADS,
        "multiple choice",
        bert("MultipleChoice", chosen),
        {
            "predictions": no_logits("BertForMultipleChoice"),
            "perturbation": other_layout("BertForMultipleChoice", (8, 4, 32), (4, 2, 4)),
        },
    ),
    case(
        HEADS,
        "pretraining (masked words and next sentence)",
        bert("PreTraining", pretrained),
        {"predictions": no_logits("BertForPreTraining")},
    ),
    case(
        HEADS,
        "a plain `nn.Module`",
        built(Plain, transformers.BertConfig, BERT, data.classified),
        dict.fromkeys(
            ("perturbation", "predictions"),
            "Plain has no `config`, which says how its inputs are read; use a PreTrainedModel",
        ),
    ),
    case(
        HEADS,
        "a plain `nn.Module` with `config` and `get_input_embeddings`",
        built(PlainWithConfig, transformers.BertConfig, BERT, data.classified),
        {
            "predictions": "PlainWithConfig is not a PreTrainedModel, so what it predicts is not known"
        },
    ),
]
FAMILY_CASES = [
    case(
        FAMILIES,
        "BART, classification",
        built(transformers.BartForSequenceClassification, transformers.BartConfig, BART, ended),
    ),
    case(
        FAMILIES,
        "T5, classification",
        built(
            transformers.T5ForSequenceClassification,
            transformers.T5Config,
            T5,
            lambda: [{**row, "input_ids": [*row["input_ids"][:-1], 1]} for row in ended()],
        ),
    ),
    case(
        FAMILIES,
        "T5, token classification",
        built(transformers.T5ForTokenClassification, transformers.T5Config, T5, data.tagged),
    ),
    case(
        FAMILIES,
        "XLNet, classification",
        built(
            transformers.XLNetForSequenceClassification,
            transformers.XLNetConfig,
            XLNET,
            data.classified,
        ),
        {"perturbation": other_layout("XLNetForSequenceClassification", (9, 4, 32), (4, 9))},
    ),
    case(FAMILIES, "GPT-2, classification", of("gpt2", data.classified)),
    case(FAMILIES, "GPT-2, language model", of("gpt2-lm", data.continued)),
    case(
        FAMILIES,
        "ViT",
        built(transformers.ViTForImageClassification, transformers.ViTConfig, VIT, pictured),
        {"perturbation": no_tokens("perturb"), "ids": no_tokens("describe samples by")},
    ),
]
ADAPTER_CASES = [
    case(
        ADAPTERS,
        "LoRA",
        adapted(
            lambda: peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS"),
            "bert",
            data.classified,
        ),
    ),
    case(
        ADAPTERS,
        "prompt tuning",
        adapted(
            lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
            "llama-lm",
            data.continued,
        ),
        is_fast=True,
    ),
    case(
        ADAPTERS,
        "p-tuning",
        adapted(
            lambda: peft.PromptEncoderConfig(
                task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=16
            ),
            "llama-lm",
            data.continued,
        ),
    ),
    case(
        ADAPTERS,
        "prefix tuning",
        adapted(
            lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
            "llama-lm",
            data.continued,
        ),
    ),
    case(
        ADAPTERS,
        "prompt tuning, classification",
        adapted(
            lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
            "bert",
            data.classified,
        ),
    ),
]
LAYOUT_CASES = [
    case(LAYOUTS, "with pictures (Qwen2-VL)", vision_language.given, is_fast=True),
    case(
        LAYOUTS,
        "`DataCollatorWithFlattening`",
        of("llama-lm", data.continued, data_collator=DataCollatorWithFlattening()),
        {"ids": "the collator makes one row of several samples; take a collator that pads"},
        is_fast=True,
    ),
    case(
        LAYOUTS,
        "gradient checkpointing",
        of("bert", data.classified),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    ),
    case(
        LAYOUTS,
        "`group_by_length`",
        of("bert", data.classified),
        train_sampling_strategy="group_by_length",
        max_steps=3,
    ),
]
CASES = [*HEAD_CASES, *FAMILY_CASES, *ADAPTER_CASES, *LAYOUT_CASES]
