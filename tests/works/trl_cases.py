"""TRL's SFTTrainer, whose loss comes from a fused head, and the trainers of TRL that have other
data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import datasets
import peft
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from works import vision_language
from works.cases import ByTrainer, Case, Setting

GROUP = "TRL"
WORDS = (
    "the", "old", "mill", "by", "a", "river", "was", "sold", "and", "its", "wheel", "turned", "again", "when", "rain",
    "came", "to", "fields", "where", "it", "sang",
)  # fmt: skip
SPECIAL = (
    "<pad>",
    "<eos>",
    "<unk>",
    "<user>",
    "<assistant>",
    "<image>",
    "<vision>",
    "</vision>",
    "<video>",
)
VOCABULARY = 50
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + ' <eos> ' }}{% "
    "endgeneration %}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 1.0}

datasets.disable_progress_bars()


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Words, and the marks of a chat."""
    words = {word: number for number, word in enumerate((*SPECIAL, *dict.fromkeys(WORDS)))}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def sentences(rows: int = 12, first: int = 0) -> list[str]:
    return [
        " ".join(WORDS[(row * 3 + first) % 7 : (row * 3 + first) % 7 + 5 + row % 4])
        for row in range(rows)
    ]


def texts() -> list[dict[str, Any]]:
    return [{"text": text} for text in sentences()]


def completions() -> list[dict[str, Any]]:
    return [
        {"prompt": prompt, "completion": " " + text}
        for prompt, text in zip(sentences(), sentences(first=4), strict=True)
    ]


def chats() -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in zip(sentences(), sentences(first=4), strict=True)
    ]


def sft(
    rows: Callable[[], list[dict[str, Any]]],
    family: str = "Llama",
    sizes: Mapping[str, Any] = SIZES,
    **more: Any,
) -> Callable[[Setting], dict[str, Any]]:
    """What an SFTTrainer is given: a causal language model and rows."""

    def given(setting: Setting) -> dict[str, Any]:
        config = getattr(transformers, f"{family}Config")(**sizes)
        config.attention_dropout = setting.dropout
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        data = datasets.Dataset.from_list(rows())
        return {"model": model, "train_dataset": data, "processing_class": tokenizer(), **more}

    return given


def sft_case(
    name: str,
    given: Callable[[Setting], dict[str, Any]],
    is_fast: bool = False,
    refused: Mapping[str, str] | None = None,
    **fields: Any,
) -> Case:
    usual = {"max_length": 24, "gradient_checkpointing": False, "bf16": False}
    train = ByTrainer(given, SFTTrainer, SFTConfig, {**usual, **fields})
    return Case(GROUP, f"SFTTrainer, {name}", train, refused or {}, is_fast)


def preferences(kind: str, **more: Any) -> Callable[[Setting], dict[str, Any]]:
    """What a trainer on pairs of a chosen and a rejected text is given."""
    rows = [
        {**row, "chosen": row["completion"], "rejected": f" {text}"}
        for row, text in zip(completions(), sentences(first=2), strict=True)
    ]

    def given(setting: Setting) -> dict[str, Any]:
        config = transformers.LlamaConfig(**SIZES, attention_dropout=setting.dropout, **more)
        kinds = {"model": kind} if more else {"model": kind, "ref_model": kind}
        models = {
            name: getattr(transformers, f"LlamaFor{kind}")(config) for name, kind in kinds.items()
        }
        data = datasets.Dataset.from_list(rows).remove_columns("completion")
        return {**models, "train_dataset": data, "processing_class": tokenizer()}

    return given


def with_pictures(setting: Setting) -> dict[str, Any]:
    return {**vision_language.given(setting), "processing_class": tokenizer()}


NO_LABELS = "the batches have no `labels`, which say what is predicted"
PAIRS = {
    "ids": "the collator must make one row of each sample, got 8 rows of 4 samples; split long samples before training "
    "and not in the collator",
    "predictions": NO_LABELS,
}
PREFERENCES = {"max_length": 24, "gradient_checkpointing": False, "bf16": False}
PACKED = 'the collator makes one row of several samples; set packing_strategy="wrapped"'

CASES = [
    sft_case("text", sft(texts), is_fast=True),
    sft_case("prompt and completion", sft(completions)),
    sft_case("chat (`messages`)", sft(chats)),
    sft_case("chat, `assistant_only_loss`", sft(chats), assistant_only_loss=True),
    sft_case('`loss_type="dft"`', sft(texts), is_fast=True, loss_type="dft"),
    sft_case("`label_smoothing_factor`", sft(texts), label_smoothing_factor=0.1),
    sft_case(
        "gradient accumulation",
        sft(texts),
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
    ),
    sft_case(
        '`packing_strategy="wrapped"`',
        sft(texts),
        packing=True,
        packing_strategy="wrapped",
        max_length=8,
    ),
    sft_case(
        '`packing_strategy="bfd"`',
        sft(texts),
        refused={"ids": PACKED},
        is_fast=True,
        packing=True,
        packing_strategy="bfd",
        max_length=16,
    ),
    sft_case("gradient checkpointing", sft(texts), gradient_checkpointing=True),
    sft_case(
        "LoRA",
        sft(
            texts,
            peft_config=peft.LoraConfig(
                r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
            ),
        ),
        learning_rate=0.5,
    ),
    sft_case("mixture of experts (Mixtral)", sft(texts, "Mixtral", SIZES | EXPERTS), is_fast=True),
    sft_case(
        "vision and language (Qwen2-VL)",
        with_pictures,
        max_length=None,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    ),
    Case(
        GROUP,
        "DPOTrainer",
        ByTrainer(preferences("CausalLM"), DPOTrainer, DPOConfig, PREFERENCES),
        PAIRS,
    ),
    Case(
        GROUP,
        "RewardTrainer",
        ByTrainer(
            preferences("SequenceClassification", num_labels=1),
            RewardTrainer,
            RewardConfig,
            PREFERENCES,
        ),
        PAIRS,
    ),
]
