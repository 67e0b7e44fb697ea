"""Models of well-known sizes with random weights and without a download: a step takes as long whatever they know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from advreg.hf.models import SCRATCH, ModelError, load_any, small_config

_POSITIONS = 512


@dataclass(frozen=True)
class Architecture:
    """One preset: the classes of transformers it is made of, and its sizes.

    Args:
        help: the sizes in words.
        config, model: names of the classes.
        settings: of the configuration.
    """

    help: str
    config: str
    model: str
    settings: Mapping[str, Any]


def _bert(help: str, **sizes: Any) -> Architecture:
    return Architecture(help, "BertConfig", "BertForSequenceClassification", {"num_labels": 2, **sizes})


def _marian(help: str, heads: int, inner: int, vocabulary: int, dropout: float) -> Architecture:
    """An encoder–decoder as Vaswani et al. (2017) have it: sinusoidal positions, one embedding matrix for all."""
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in {"layers": 6, "attention_heads": heads, "ffn_dim": inner}.items()
    }
    return Architecture(
        help,
        "MarianConfig",
        "MarianMTModel",
        {
            **sides,
            "d_model": 512,
            "vocab_size": vocabulary,
            "decoder_vocab_size": vocabulary,
            "dropout": dropout,
            "scale_embedding": True,
            "activation_function": "relu",
            "pad_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
    )


PRESETS: dict[str, Architecture] = {
    SCRATCH: _bert(
        "BERT, 2 layers of width 128",
        **{
            name: value
            for name, value in small_config(1000, 0, None, {"num_labels": 2}).to_diff_dict().items()
            if name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        },
        attention_probs_dropout_prob=0.0,
    ),
    "minilm": _bert(
        "BERT, 6 layers of width 384",
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    ),
    "bert-base": _bert("BERT, 12 layers of width 768"),
    "transformer-iwslt": _marian("6+6 layers of width 512, 4 heads, inner 1024, 10k words", 4, 1024, 10_000, 0.3),
    "transformer-base": _marian("6+6 layers of width 512, 8 heads, inner 2048, 32k words", 8, 2048, 32_000, 0.1),
}


def build(name: str, positions: int = _POSITIONS, seed: int = 0) -> Any:
    """A preset with random weights, in training mode.

    Args:
        name: one of :data:`PRESETS`.
        positions: tokens it must be able to take.
        seed: of the weights; torch's own generator is left as it was.
    """
    preset = PRESETS[name]
    settings = {**preset.settings, "max_position_embeddings": max(_POSITIONS, positions)}
    config = getattr(transformers, preset.config)(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, preset.model)(config).train()


def find_model(name: str, positions: int = _POSITIONS, seed: int = 0) -> Any:
    """A preset by its name, else a folder or a hub name."""
    if name in PRESETS:
        return build(name, positions, seed)
    try:
        return load_any(name).train()
    except ModelError as error:
        raise ModelError(f"{error}, or one of {', '.join(PRESETS)}") from error
