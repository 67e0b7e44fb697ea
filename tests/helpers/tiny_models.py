"""Tiny random models of every supported family, built from their configuration (nothing is
downloaded), and batches.

Two layers, width 32, two heads, 50 words, 64 positions. Weights are drawn with a standard deviation
of about 1/√width instead of the library's 0.02, which at this width would leave all logits equal
and the gradients invisible. A table entry says only what makes a family special: its own names for
the sizes, and the settings of the well-known checkpoints where the library's defaults differ from
them (DeBERTa's relative attention, Marian's scaled embeddings).

Attention is the library's default, SDPA where a family has it. Not eager: on left-padded float64
batches Llama and Qwen2 then give NaN, for they take the softmax in float32, where the mask's
float64 minimum is minus infinity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

VOCABULARY = 50
POSITIONS = 64
WIDTH = 32
EMBEDDING_WIDTH = 16  # of ALBERT and ELECTRA, whose embeddings are narrower than their layers
LABELS = 3
IGNORED = -100  # the label that every loss of the library leaves out
REAL_TOKENS = (5, 45)  # half-open; every family keeps its special tokens outside
SPREAD = 0.2  # standard deviation of the weights, about 1/√WIDTH

Task = Literal["classify", "translate", "continue"]
Side = Literal["right", "left"]


@dataclass(frozen=True)
class _Family:
    """A row of the table: the class names in `transformers`, and the settings beyond the shared
    ones.
    """

    config: str
    model: str
    task: Task
    pad: int
    settings: Mapping[str, Any] = field(default_factory=dict)


_BERT_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": POSITIONS,
    "initializer_range": SPREAD,
}
# RoBERTa and MPNet count positions from pad + 1, so 64 tokens need 66 rows.
_ROBERTA_SIZES = _BERT_SIZES | {
    "max_position_embeddings": POSITIONS + 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_NARROW = {"embedding_size": EMBEDDING_WIDTH}
_BART_SIZES = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": POSITIONS,
    "init_std": SPREAD,
}
_BART_TOKENS = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_GPT2 = {
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": POSITIONS,
    "initializer_range": SPREAD,
    "bos_token_id": 49,
    "eos_token_id": 49,
}
_LLAMA = _BERT_SIZES | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}

_TABLE: dict[str, _Family] = {
    "bert": _Family("BertConfig", "BertForSequenceClassification", "classify", 0, _BERT_SIZES),
    "roberta": _Family(
        "RobertaConfig", "RobertaForSequenceClassification", "classify", 1, _ROBERTA_SIZES
    ),
    "deberta-v2": _Family(
        "DebertaV2Config",
        "DebertaV2ForSequenceClassification",
        "classify",
        0,
        _BERT_SIZES
        | {  # as in DeBERTa-v3: positions enter through the attention only
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "pooler_hidden_size": WIDTH,
        },
    ),
    "albert": _Family(
        "AlbertConfig",
        "AlbertForSequenceClassification",
        "classify",
        0,
        _BERT_SIZES | _NARROW | {"bos_token_id": 2, "eos_token_id": 3},
    ),
    "electra": _Family(
        "ElectraConfig", "ElectraForSequenceClassification", "classify", 0, _BERT_SIZES | _NARROW
    ),
    "distilbert": _Family(
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        "classify",
        0,
        {
            "dim": WIDTH,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 2 * WIDTH,
            "max_position_embeddings": POSITIONS,
            "initializer_range": SPREAD,
        },
    ),
    "mpnet": _Family(
        "MPNetConfig", "MPNetForSequenceClassification", "classify", 1, _ROBERTA_SIZES
    ),
    "modernbert": _Family(
        "ModernBertConfig",
        "ModernBertForSequenceClassification",
        "classify",
        49,
        _BERT_SIZES
        | {"bos_token_id": 47, "cls_token_id": 47, "eos_token_id": 48, "sep_token_id": 48},
    ),
    "bart": _Family(
        "BartConfig", "BartForConditionalGeneration", "translate", 1, _BART_SIZES | _BART_TOKENS
    ),
    "t5": _Family(
        "T5Config",
        "T5ForConditionalGeneration",
        "translate",
        0,
        {  # its initialiser scales with the width by itself
            "d_model": WIDTH,
            "d_kv": WIDTH // 2,
            "d_ff": 2 * WIDTH,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 2,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
    ),
    "marian": _Family(
        "MarianConfig",
        "MarianMTModel",
        "translate",
        49,
        _BART_SIZES
        | {
            "decoder_vocab_size": VOCABULARY,
            "scale_embedding": True,  # as in the opus-mt checkpoints
            "eos_token_id": 0,
            "forced_eos_token_id": 0,
            "decoder_start_token_id": 49,
        },
    ),
    "m2m100": _Family(
        "M2M100Config", "M2M100ForConditionalGeneration", "translate", 1, _BART_SIZES | _BART_TOKENS
    ),
    "gpt2": _Family("GPT2Config", "GPT2ForSequenceClassification", "classify", 48, _GPT2),
    "llama": _Family("LlamaConfig", "LlamaForSequenceClassification", "classify", 0, _LLAMA),
    "qwen": _Family(
        "Qwen2Config",
        "Qwen2ForSequenceClassification",
        "classify",
        48,
        _BERT_SIZES | {"num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": 49},
    ),
    "gpt2-lm": _Family("GPT2Config", "GPT2LMHeadModel", "continue", 48, _GPT2),
    "llama-lm": _Family("LlamaConfig", "LlamaForCausalLM", "continue", 0, _LLAMA),
}

ENCODERS = (
    "bert",
    "roberta",
    "deberta-v2",
    "albert",
    "electra",
    "distilbert",
    "mpnet",
    "modernbert",
)
ENCODER_DECODERS = ("bart", "t5", "marian", "m2m100")
DECODERS_CLASSIFY = ("gpt2", "llama", "qwen")
CAUSAL_LMS = ("gpt2-lm", "llama-lm")


def tiny(
    family: str,
    *,
    dropout: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> PreTrainedModel:
    """A tiny random model of `family`, in training mode.

    `dropout` sets every dropout probability of the configuration and switches layer drop off, so
    that 0.0 makes the training mode deterministic; None keeps the library's defaults. The weights
    depend on `seed` alone (in another `dtype` they are the same numbers, cast), and torch's global
    generator is left as it was. `overrides` go to the configuration and win over everything else.
    """
    row = _TABLE[family]
    config_class = getattr(transformers, row.config)
    settings = {"vocab_size": VOCABULARY, "pad_token_id": row.pad} | dict(row.settings)
    if row.task == "classify":
        settings["num_labels"] = LABELS
    if dropout is not None:
        names = [name for name in config_class().to_dict() if "drop" in name]
        settings |= {name: 0.0 if "layerdrop" in name else dropout for name in names}
    config = config_class(**(settings | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = getattr(transformers, row.model)(config).to(dtype)
    model.train()
    return model


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    family: partial(tiny, family) for family in _TABLE
}

_ATTENTION = {
    "bert": ["query", "value"],
    "roberta": ["query", "value"],
    "albert": ["query", "value"],
    "electra": ["query", "value"],
    "deberta-v2": ["query_proj", "value_proj"],
    "distilbert": ["q_lin", "v_lin"],
    "mpnet": ["q", "v"],
    "t5": ["q", "v"],
    "modernbert": ["Wqkv"],
    "gpt2": ["c_attn"],
    "gpt2-lm": ["c_attn"],
}


def lora_targets(family: str) -> list[str]:
    """Modules of its attention that LoRA is put on."""
    return _ATTENTION.get(family, ["q_proj", "v_proj"])


def tiny_batch(
    family_or_model: str | nn.Module,
    *,
    batch: int = 4,
    seed: int = 0,
    side: Side = "right",
    lengths: Sequence[int] | None = None,
    pad_to: int | None = None,
) -> dict[str, Tensor]:
    """A ragged batch: `input_ids` and `attention_mask` (B, T), and the `labels` that the family's
    loss wants.

    Labels are (B,) classes; for an encoder-decoder (B, U) target tokens, ragged with lengths of
    their own and padded with -100 on the right whatever `side` is, since the decoder starts at
    position 0; for a causal language model the input tokens, -100 on padding. `lengths` gives the
    number of real tokens of each sample (and overrides `batch`), `pad_to` the widths T and U. Row
    i's real tokens and label depend on `seed` and i alone: another side, width or length shows the
    same tokens, or a prefix of them.
    """
    task, pad = _task_and_pad(family_or_model)
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    rows = batch if lengths is None else len(lengths)
    # All random numbers of a row are drawn together, so that row i is the same in a batch of any
    # size.
    drawn = draw(0, 2**20, (rows, 2 * POSITIONS + 3))
    low, high = REAL_TOKENS
    tokens = (low + drawn % (high - low))[:, : 2 * POSITIONS]
    sources, targets = tokens[:, :POSITIONS], tokens[:, POSITIONS:]
    if lengths is None:
        lengths = _ragged(drawn[:, -3], first=10, second=3)
    input_ids = _padded(sources, lengths, side=side, fill=pad, pad_to=pad_to)
    attention_mask = _padded(torch.ones_like(sources), lengths, side=side, fill=0, pad_to=pad_to)
    if task == "classify":
        labels = drawn[:, -1] % LABELS
    elif task == "translate":
        target_lengths = _ragged(drawn[:, -2], first=4, second=8)
        labels = _padded(targets, target_lengths, side="right", fill=IGNORED, pad_to=pad_to)
    else:
        labels = input_ids.masked_fill(attention_mask == 0, IGNORED)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def _task_and_pad(family_or_model: str | nn.Module) -> tuple[Task, int]:
    """What the labels are, and the id of the padding token, of a family or of a model (PEFT's
    wrapper too).
    """
    if isinstance(family_or_model, str):
        row = _TABLE[family_or_model]
        return row.task, row.pad
    model: Any = family_or_model
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    tasks: dict[str, Task] = {row.model: row.task for row in _TABLE.values()}
    return tasks[type(model).__name__], model.config.pad_token_id


def _ragged(drawn: Tensor, *, first: int, second: int) -> list[int]:
    """Lengths between `first` and `second`, which the first two rows have: ragged by construction,
    not by luck.
    """
    low, high = sorted((first, second))
    return ([first, second] + [low + number % (high - low + 1) for number in drawn.tolist()[2:]])[
        : len(drawn)
    ]


def _padded(
    rows: Tensor, lengths: Sequence[int], *, side: Side, fill: int, pad_to: int | None
) -> Tensor:
    """The first `lengths[i]` entries of each row, padded with `fill` on `side` to `pad_to` or the
    longest.
    """
    width = max(lengths) if pad_to is None else pad_to
    if max(lengths) > min(width, POSITIONS):
        raise ValueError(f"lengths must be at most {min(width, POSITIONS)}, got {max(lengths)}")
    padded = rows.new_full((len(rows), width), fill)
    for padded_row, row, length in zip(padded, rows, lengths, strict=True):
        start = width - length if side == "left" else 0
        padded_row[start : start + length] = row[:length]
    return padded
