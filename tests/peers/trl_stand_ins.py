"""Stand-ins for the tests of TRL's trainers: its own data, and the models these tests train on a
CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from peers.hub import SEED, Hub, byte_pairs, seeded
from peers.trl_vision import SPECIAL, VISION

ORGANIZATION = "trl-internal-testing"
DATA = (
    "zen",
    "zen_image",
    "zen_multi_image",
    "toolcall",
    "harmony",
)  # scripts of the checkout that make them
VOCABULARY = 1000

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"

TEXT = {
    "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA = {
    "mamba_num_heads": 8, "mamba_head_dim": 4, "mamba_n_groups": 1, "ssm_state_size": 16, "use_mamba_kernels": False,
}  # fmt: skip
LFM2 = {"full_attn_idxs": [1], "block_multiple_of": 8}

# name: model class, chat template, sizes that are not as in TEXT (None: the model's own)
CAUSAL: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("Qwen2ForCausalLM", "qwen2_5", {}),
    "tiny-Qwen3ForCausalLM": ("Qwen3ForCausalLM", "qwen3", {}),
    "tiny-Qwen3MoeForCausalLM": ("Qwen3MoeForCausalLM", "qwen3", EXPERTS),
    "tiny-GptOssForCausalLM": ("GptOssForCausalLM", "gptoss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "tiny-GPTNeoXForCausalLM": ("GPTNeoXForCausalLM", None, {"num_key_value_heads": None}),
    "tiny-Cohere2ForCausalLM": ("Cohere2ForCausalLM", "cohere2", {"logit_scale": 1.0}),
    "tiny-Glm4MoeForCausalLM": (
        "Glm4MoeForCausalLM", "glm4moe", {**ROUTED, "head_dim": 2, "attention_bias": True, "use_qk_norm": True},
    ),
    "tiny-Olmo3ForCausalLM": ("Olmo3ForCausalLM", None, {}),
    "tiny-Lfm2ForCausalLM": ("Lfm2ForCausalLM", "lfm2", LFM2),
    "tiny-Lfm2ForCausalLM-2.5": ("Lfm2ForCausalLM", "lfm2_2_5", LFM2),
    "tiny-NemotronHForCausalLM-nano": (
        "NemotronHForCausalLM",
        "nemotron_3_nano",
        {
            **MAMBA, **ROUTED, "hidden_size": 16, "num_hidden_layers": None,
            "layers_block_type": ["mamba", "attention", "moe"], "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "tiny-LlamaForCausalLM-3.2": ("LlamaForCausalLM", "llama3_2", {}),
    "tiny-MistralForCausalLM-0.2": ("MistralForCausalLM", None, {}),
}  # fmt: skip


def build(hub: Hub, checkout: Path) -> None:
    """Make them all; what cannot be made with the installed libraries is left out, and said."""
    for name in DATA:
        _try(name, partial(_make_data, hub, checkout / "scripts" / f"generate_{name}_dataset.py"))
    makers = Makers(hub)
    for name in CAUSAL:
        _try(name, partial(makers.causal, name))
    for name in VISION:
        _try(name, partial(makers.vision, name))
    _try("tiny-RemoteForCausalLM", partial(makers.remote, checkout))
    hub.save("Qwen/Qwen3-4B", makers.tokenizer("qwen3"))  # a test takes its chat template


def _try(name: str, make: Callable[[], None]) -> None:
    """Make it, if the installed libraries can: with others the tests that need it fail, with the
    stock trainer too.
    """
    try:
        make()
    except Exception as error:
        print(f"no stand-in for {name}: {type(error).__name__}: {error}", file=sys.stderr)


def _make_data(hub: Hub, script: Path) -> None:
    """Run one of the checkout's scripts, which hold the data, with uploading replaced by saving."""

    def save(splits: Any, repo_id: str, config_name: str = "default", **_: Any) -> None:
        hub.save_data(repo_id, config_name, dict(splits))

    arguments = [str(script), "--push_to_hub"]
    np.random.seed(SEED)  # of the images
    with (
        patch.object(datasets.DatasetDict, "push_to_hub", save),
        patch.object(sys, "argv", arguments),
    ):
        runpy.run_path(str(script), run_name="__main__")


class Makers:
    """Makes models with a tokenizer each; all have one vocabulary.

    Args:
        hub: where they go, and where the data lies that the vocabulary is learnt from.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        special = [END_OF_TEXT, "<|im_start|>", END_OF_TURN, *SPECIAL]
        self.core = byte_pairs(_texts(hub.folder / ORGANIZATION), VOCABULARY, special)

    def tokenizer(self, template: str | None, marks: dict[str, str] | None = None) -> Any:
        """A tokenizer with one of the chat templates that come with the installed TRL."""
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(self.core.to_str()),
            eos_token=END_OF_TURN,
            pad_token=END_OF_TEXT,
            extra_special_tokens=marks or {},
        )
        if template is not None:
            made.chat_template = _template(template)
        return made

    def causal(self, name: str) -> None:
        """A language model."""
        kind, template, sizes = CAUSAL[name]
        model_class, tokenizer = getattr(transformers, kind), self.tokenizer(template)
        sizes = {name: size for name, size in {**TEXT, **sizes}.items() if size is not None}
        config = model_class.config_class(**sizes, **_ids(tokenizer))
        self._save(name, lambda: model_class(config), tokenizer)

    def vision(self, name: str) -> None:
        """A model of images and text."""
        spec = VISION[name]
        tokenizer = self.tokenizer(spec.template, spec.marks)
        model_class = getattr(transformers, spec.kind)
        config = model_class.config_class(**spec.config(tokenizer, _ids(tokenizer)))
        self._save(name, lambda: model_class(config), spec.processor(tokenizer))

    def remote(self, checkout: Path) -> None:
        """A model whose code comes with it, which the checkout has."""
        name = "tiny-RemoteForCausalLM"
        code = checkout / "scripts" / "generate_tiny_models" / "for_causal_lm" / "_remote_code"
        with patch.object(sys, "path", [str(code.parent), *sys.path]):
            config_class = importlib.import_module("_remote_code.configuration_remote").RemoteConfig
            model_class = importlib.import_module("_remote_code.modeling_remote").RemoteForCausalLM
        config_class.register_for_auto_class()
        model_class.register_for_auto_class("AutoModelForCausalLM")
        tokenizer = self.tokenizer("llama3_2")
        self._save(name, lambda: model_class(config_class(**TEXT, **_ids(tokenizer))), tokenizer)

    def _save(self, name: str, make: Callable[[], Any], companion: Any) -> None:
        self.hub.save(
            f"{ORGANIZATION}/{name}", _initialised(seeded(make)).to(torch.bfloat16), companion
        )


def _ids(tokenizer: Any) -> dict[str, int | None]:
    """What a configuration says of the tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }


def _initialised(model: nn.Module) -> nn.Module:
    """Weights large enough that a few steps change each of them, as the tests ask."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    return model


def _template(name: str) -> str:
    """A chat template of the installed TRL."""
    package = importlib.util.find_spec("trl")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("trl")
    return (Path(package.origin).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )


def _texts(folder: Path) -> Iterator[str]:
    """What the vocabulary is learnt from: the data as written."""
    for file in sorted(folder.glob("*/*/*.parquet")):
        if "image" not in file.parent.parent.name:
            yield from map(str, datasets.Dataset.from_parquet(str(file)))
