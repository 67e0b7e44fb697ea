"""A tiny causal language model in a folder, with a tokenizer of bytes, and files to train it on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tiny_models import tiny

CHAT = (
    "{% for message in messages %}"
    "{{ '<s>' + message['role'] + ': ' + message['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)
ANIMALS = ("cat", "dog", "cow", "hen", "pig", "fox")
POSITIONS = 256


def byte_tokenizer(template: str | None = CHAT) -> Any:
    """A tokenizer of single bytes, with <pad>, <s> and </s>."""
    letters = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(letters)}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    found: Any = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    found.chat_template = template
    return found


def language_model(**overrides: Any) -> Any:
    """A tiny Llama for these tokens."""
    sizes = {"vocab_size": 259, "max_position_embeddings": POSITIONS}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return tiny("llama-lm", **(sizes | ends | overrides))


def language_folder(folder: Path, template: str | None = CHAT, **overrides: Any) -> Path:
    """The model and its tokenizer, saved."""
    language_model(**overrides).save_pretrained(folder)
    byte_tokenizer(template).save_pretrained(folder)
    return folder


def questions(size: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Sums of animals with their answers, of different lengths."""
    draw = random.Random(seed)
    rows = []
    for _ in range(size):
        first, second, animal = draw.randint(1, 40), draw.randint(1, 400), draw.choice(ANIMALS)
        prompt = f"{first} {animal}s and {second} more?"
        rows.append({"prompt": prompt, "completion": f"{animal}s: #### {first + second}"})
    return rows


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A jsonl file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path
