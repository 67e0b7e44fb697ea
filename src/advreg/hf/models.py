"""Getting a model and its tokenizer: from a folder, from the hub, or small and from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from advreg.hf.wordpieces import train_tokenizer

SCRATCH = "small"
"""Name of the model that is built from scratch, with a tokenizer trained on the training texts."""

# BERT and its kin; BART, DistilBERT; ModernBERT; T5; GPT-2
_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout"),
    "dropout_rate",
    *("embd_pdrop", "attn_pdrop", "resid_pdrop"),
)


class ModelError(ValueError):
    """A model or tokenizer cannot be had."""


def load_classifier(
    name: str, tokenizer: Any, labels: Sequence[str] | None, seed: int, dropout: float | None = None
) -> Any:
    """A model with a classification head (or, with ``labels=None``, a regression head of one output).

    Args:
        name: ``"small"``, a folder or a hub name.
        tokenizer: the tokenizer it will read from; its size and padding token are handed to the model.
        labels: names of the classes.
        seed: of the weights that are drawn: all of them, or the head's.
        dropout: overrides the dropout of the encoder.
    """
    head = {
        "num_labels": 1 if labels is None else len(labels),
        "problem_type": "regression" if labels is None else "single_label_classification",
        "id2label": dict(enumerate(labels or ["score"])),
        "label2id": {label: index for index, label in enumerate(labels or ["score"])},
    }
    transformers.set_seed(seed)
    if name == SCRATCH:
        cls: Any = transformers.BertForSequenceClassification
        return cls(small_config(len(tokenizer), tokenizer.pad_token_id, dropout, head))
    config = _from(AutoConfig, name, **head)
    if dropout is not None:
        _set_dropout(config, dropout, name)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    # a checkpoint that was trained for other classes gets a new head
    options = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True}
    return _from(AutoModelForSequenceClassification, name, **options)


def small_config(vocabulary: int, padding: int, dropout: float | None, head: dict[str, Any]) -> Any:
    """A two-layer encoder of width 128 that two cores can train in a minute."""
    share = 0.1 if dropout is None else dropout
    return transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=128,
        pad_token_id=padding,
        hidden_dropout_prob=share,
        attention_probs_dropout_prob=0.0,  # with it, attention on a CPU takes a slower path
        **head,
    )


def load_tokenizer(name: str, texts: Sequence[str], max_length: int) -> Any:
    """The tokenizer of a model; for the small one, trained on ``texts``."""
    if name == SCRATCH:
        return train_tokenizer(texts, max_length=max_length)
    tokenizer = _from(AutoTokenizer, name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_any(name: str, dtype: str = "float32") -> Any:
    """A model with the head its checkpoint was saved with; a bare encoder gets a new classification head."""
    kind = getattr(torch, dtype, None)
    if kind not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise ModelError(f"dtype must be float32, float16, bfloat16 or float64, got '{dtype}'")
    config = _from(AutoConfig, name)
    for architecture in config.architectures or []:
        cls = getattr(transformers, architecture, None)
        if cls is not None and architecture.endswith(("Classification", "Generation", "LM", "LMHeadModel", "MTModel")):
            return _from(cls, name, dtype=kind)
    return _from(AutoModelForSequenceClassification, name, dtype=kind)


def _from(cls: Any, name: str, **options: Any) -> Any:
    """``cls.from_pretrained(name)``, with an error that says what to do."""
    try:
        return cls.from_pretrained(name, **options)
    except (OSError, ValueError, SafetensorError) as error:
        where = "is a folder, but" if Path(name).is_dir() else "is neither a folder here nor reachable on the hub:"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model '{name}' {where} {first} Give '{SCRATCH}', a folder with config.json and weights, or a hub name"
        ) from error


def _set_dropout(config: Any, dropout: float, name: str) -> None:
    fields = [field for field in _DROPOUTS if hasattr(config, field)]
    if not fields:
        raise ModelError(f"dropout cannot be set for '{name}': its config has none of {', '.join(_DROPOUTS)}")
    for field in fields:
        setattr(config, field, dropout)
