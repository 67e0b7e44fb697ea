"""Models of well-known sizes with random weights, for benchmarks without downloads: the time of a
step does not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from advreg.lab.kinds.models import SCRATCH, ModelError, load_any, small_config

_POSITIONS = 512


@dataclass(frozen=True)
class Architecture:
    """One preset: its transformers classes and its sizes.

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
    return Architecture(
        help, "BertConfig", "BertForSequenceClassification", {"num_labels": 2, **sizes}
    )


def _marian(
    help: str,
    heads: int,
    inner: int,
    vocabulary: int,
    dropout: float,
    width: int = 512,
    layers: int = 6,
) -> Architecture:
    """An encoder–decoder as Vaswani et al. (2017) have it: sinusoidal positions, one embedding
    matrix for all.
    """
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in {"layers": layers, "attention_heads": heads, "ffn_dim": inner}.items()
    }
    return Architecture(
        help,
        "MarianConfig",
        "MarianMTModel",
        {
            **sides,
            "d_model": width,
            "vocab_size": vocabulary,
            "decoder_vocab_size": vocabulary,
            "dropout": dropout,
            # smaller the deeper (Zhang et al. 2019): with 1/√D six layers that norm last stay on a
            # plateau
            "init_std": (width * layers) ** -0.5,
            "scale_embedding": True,
            "activation_function": "relu",
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": None,
            "decoder_start_token_id": 2,
        },
    )


PRESETS: dict[str, Architecture] = {
    SCRATCH: _bert(
        "BERT, 2 layers of width 128",
        **{
            name: value
            for name, value in small_config(1000, 0, None, {"num_labels": 2}).to_diff_dict().items()
            if name
            in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            )
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
    "transformer-iwslt": _marian(
        "6+6 layers of width 512, 4 heads, inner 1024, 10k words", 4, 1024, 10_000, 0.3
    ),
    "transformer-base": _marian(
        "6+6 layers of width 512, 8 heads, inner 2048, 32k words", 8, 2048, 32_000, 0.1
    ),
    "transformer-big": _marian(
        "6+6 layers of width 1024, 16 heads, inner 4096, 32k words",
        16,
        4096,
        32_000,
        0.3,
        width=1024,
    ),
    "transformer-small": _marian(
        "2+2 layers of width 128, 4 heads, inner 256, 4k words",
        4,
        256,
        4_000,
        0.1,
        width=128,
        layers=2,
    ),
}

TRANSLATORS = tuple(name for name, preset in PRESETS.items() if preset.model == "MarianMTModel")
"""Presets that translate."""


def build(
    name: str, positions: int = _POSITIONS, seed: int = 0, settings: Mapping[str, Any] | None = None
) -> Any:
    """A preset with random weights, in training mode.

    Args:
        name: one of :data:`PRESETS`.
        positions: tokens it must be able to take.
        seed: of the weights; torch's own generator is not affected.
        settings: of the configuration, instead of the preset's.
    """
    preset = PRESETS[name]
    merged = {
        **preset.settings,
        "max_position_embeddings": max(_POSITIONS, positions),
        **(settings or {}),
    }
    config = getattr(transformers, preset.config)(**merged)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, preset.model)(config).train()
    if getattr(config, "scale_embedding", False):
        _start_at_size_one(model)
    return model


@torch.no_grad()
def _start_at_size_one(model: Any) -> None:
    """Let embeddings that are multiplied by √D begin at size 1, as is usual, and not at
    ``init_std``·√D.
    """
    tables = {side.embed_tokens.weight for side in (model.get_encoder(), model.get_decoder())}
    for weight in tables:
        weight.mul_(model.config.d_model**-0.5 / model.config.init_std)


def build_translator(
    name: str,
    vocabulary: int,
    target_vocabulary: int | None = None,
    dropout: float | None = None,
    positions: int = _POSITIONS,
    seed: int = 0,
    special: Mapping[str, int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A translation preset for a vocabulary.

    Args:
        name: one of :data:`TRANSLATORS`.
        vocabulary: words of both languages, or of the source where the target has its own.
        target_vocabulary: words of the target; one embedding matrix serves both sides if not given.
        dropout: instead of the preset's.
        positions: tokens it must be able to take.
        seed: of the weights.
        special: ids of ``bos``, ``pad`` and ``eos``, ``eos`` also starts the target; 0, 1, 2
            if not given.
        settings: of the configuration, instead of the preset's.
    """
    if name not in TRANSLATORS:
        raise ModelError(f"model must be one of {', '.join(TRANSLATORS)}, got '{name}'")
    sizes = {"vocab_size": vocabulary, "decoder_vocab_size": target_vocabulary or vocabulary}
    ids = {f"{token}_token_id": number for token, number in (special or {}).items()}
    if special and "eos" in special:
        ids["decoder_start_token_id"] = special["eos"]
    shared = {"share_encoder_decoder_embeddings": target_vocabulary is None}
    chosen = {} if dropout is None else {"dropout": dropout}
    return build(name, positions, seed, {**sizes, **shared, **chosen, **ids, **(settings or {})})


def find_model(name: str, positions: int = _POSITIONS, seed: int = 0) -> Any:
    """A preset by its name, else a folder or a hub name."""
    if name in PRESETS:
        return build(name, positions, seed)
    try:
        return load_any(name).train()
    except ModelError as error:
        raise ModelError(f"{error}, or one of {', '.join(PRESETS)}") from error
