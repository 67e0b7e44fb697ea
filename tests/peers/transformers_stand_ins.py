"""Stand-ins for the tests of transformers' trainer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import datasets
import transformers

from peers.hub import Hub, byte_pairs, seeded

WORDS = [f"w{number}" for number in range(400)]
VOCABULARY = 700
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?'-")
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 512}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 512}
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2}
MBART = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip

# hub id: configuration, columns, samples
DATA = {
    "Salesforce/wikitext": ("wikitext-2-raw-v1", ("text",), 200),
    "openai/gsm8k": ("main", ("question", "answer"), 38),
    "fka/awesome-chatgpt-prompts": ("default", ("act", "prompt"), 64),
}
SHORTEST, LONGEST = 14, 30  # words of a text

# A metric named like the package it calls; the tests ask that there is a score, and the package
# need not be installed.
METRIC = """\
import datasets
import evaluate


class SacreBLEU(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("string"), "references": [datasets.Value("string")]}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {"score": 100 * sum(one in many for one, many in zip(predictions, references)) / len(predictions)}
"""


def build(hub: Hub, checkout: Path) -> None:
    """Make them all."""
    for name in ("bert-base-cased", "bert-base-uncased", "google-bert/bert-base-uncased"):
        _add(hub, name, "BertForPreTraining", _bert_tokenizer(), **SMALL)
    _add(
        hub,
        "hf-internal-testing/tiny-random-LlamaForCausalLM",
        "LlamaForCausalLM",
        _byte_tokenizer(),
        **LLAMA,
    )
    _add(
        hub,
        "trl-internal-testing/tiny-Qwen2ForCausalLM-2.5",
        "Qwen2ForCausalLM",
        _byte_tokenizer(),
        **LLAMA,
    )
    _add(hub, "openai-community/gpt2", "GPT2LMHeadModel", _byte_tokenizer(), **GPT2)
    t5 = _t5_tokenizer()
    _add(
        hub,
        "google-t5/t5-small",
        "T5ForConditionalGeneration",
        t5,
        **T5,
        decoder_start_token_id=t5.pad_token_id,
    )
    _add(hub, "sshleifer/tiny-mbart", "MBartForConditionalGeneration", _mbart_tokenizer(), **MBART)
    hub.save("facebook/wav2vec2-base-960h", transformers.Wav2Vec2FeatureExtractor())
    clip = transformers.CLIPProcessor(transformers.CLIPImageProcessor(), _byte_tokenizer())
    hub.save("openai/clip-vit-base-patch32", clip)
    hub.save_code("sacrebleu", METRIC)
    for name, (config, columns, count) in DATA.items():
        hub.save_data(name, config, {"train": _texts(columns, count)})


def _add(hub: Hub, name: str, kind: str, tokenizer: Any, **sizes: Any) -> None:
    model_class = getattr(transformers, kind)
    config = model_class.config_class(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes
    )
    hub.save(name, seeded(lambda: model_class(config)), tokenizer)


def _texts(columns: tuple[str, ...], count: int) -> datasets.Dataset:
    """Texts of random words."""
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(SHORTEST, LONGEST)))

    return datasets.Dataset.from_dict(
        {column: [text() for _ in range(count)] for column in columns}
    )


def _byte_tokenizer() -> Any:
    special = ["<pad>", "<s>", "</s>", "<|endoftext|>"]  # the last is what Qwen adds
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs([" ".join(WORDS)], VOCABULARY, special),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    )


def _bert_tokenizer() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = special + LETTERS + [f"##{letter}" for letter in LETTERS] + WORDS
    return transformers.BertTokenizer(
        vocab={piece: id for id, piece in enumerate(pieces)}, model_max_length=128
    )


def _t5_tokenizer() -> Any:
    return transformers.T5Tokenizer(vocab=_pieces("<pad>", "</s>", "<unk>"))


def _mbart_tokenizer() -> Any:
    return transformers.MBartTokenizer(vocab=_pieces("<s>", "<pad>", "</s>", "<unk>"))


def _pieces(*special: str) -> list[tuple[str, float]]:
    """Pieces with their scores."""
    pieces = [(piece, 0.0) for piece in special]
    return (
        pieces
        + [(f"▁{word}", -5.0) for word in WORDS]
        + [(letter, -10.0) for letter in ["▁", *LETTERS]]
    )
