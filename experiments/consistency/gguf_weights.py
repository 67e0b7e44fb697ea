"""Weights of a Llama from a GGUF file as a safetensors file that transformers loads; no package
beyond numpy and torch.

    python experiments/consistency/gguf_weights.py FILE.gguf FOLDER

FOLDER holds the model's config and tokenizer and receives ``model.safetensors`` in bfloat16. The
file may hold tensors as F32, Q4_1 and Q8_0, which are the types of SmolLM2-135M from 4-bit weights.
Blocks have 32 weights: Q4_1 is w = d · q + m with q in 0…15 (two float16, then 16 bytes: low halves
first), Q8_0 is w = d · q with q in −128…127. llama.cpp stores the query and key matrices with the
two halves of each head interleaved; here they have transformers' order again. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
BLOCK = 32
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[2])
    if not (folder / "config.json").is_file():
        sys.exit(f"FOLDER must hold the model's config.json, got '{folder}' without it")
    save_file(
        llama_weights(Path(sys.argv[1]).read_bytes()), folder / WEIGHTS, metadata={"format": "pt"}
    )
    print(folder / WEIGHTS)


def llama_weights(content: bytes) -> dict[str, Tensor]:
    """The weights under the names of transformers, in bfloat16."""
    facts, tensors = read(content)
    heads = {"q": facts["llama.attention.head_count"], "k": facts["llama.attention.head_count_kv"]}
    found = {}
    for name, values in tensors.items():
        part = re.search(r"attn_([qk])\.weight", name)
        ordered = values if part is None else halves_apart(values, heads[part[1]])
        found[renamed(name)] = torch.tensor(ordered, dtype=torch.bfloat16)
    return found


def renamed(name: str) -> str:
    """A tensor's name in transformers: ``blk.3.attn_q.weight`` is
    ``model.layers.3.self_attn.q_proj.weight``.
    """
    layer, part, kind = re.fullmatch(r"(blk\.\d+\.)?(\w+)\.(weight|bias)", name).groups()  # type: ignore[union-attr]
    return f"{(layer or '').replace('blk', 'model.layers')}{_NAMES[part]}.{kind}"


def halves_apart(values: Floats, heads: int) -> Floats:
    """Rows of a query or key matrix as transformers orders them: of each head the first half, then
    the second.
    """
    rows, columns = values.shape
    return (
        values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


# ---- the file


@dataclass
class _Reader:
    content: bytes
    place: int = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self.content, self.place)
        self.place += struct.calcsize(f"<{form}")
        return found

    def number(self, form: str) -> Any:
        return self.numbers(form)[0]

    def text(self) -> str:
        length = self.number("Q")
        self.place += length
        return self.content[self.place - length : self.place].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, length = self.numbers("IQ")
            return [self.value(inner) for _ in range(length)]
        return self.number(_SCALARS[kind])


def read(content: bytes) -> tuple[dict[str, Any], dict[str, Floats]]:
    """The facts and the tensors of a file."""
    reader = _Reader(content)
    if content[:4] != b"GGUF":
        raise ValueError(
            f"the file must begin with 'GGUF', got {content[:4]!r}; put its parts together in "
            "their order"
        )
    reader.place = 4
    _, count, facts_count = reader.numbers("IQQ")
    facts = {reader.text(): reader.value(reader.number("I")) for _ in range(facts_count)}
    listed = [_listed(reader) for _ in range(count)]
    alignment = facts.get("general.alignment", _ALIGNMENT)
    start = -(-reader.place // alignment) * alignment
    return facts, {
        name: _tensor(content, start + offset, shape, kind) for name, shape, kind, offset in listed
    }


def _listed(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and place of a tensor; the file names the innermost size first."""
    name = reader.text()
    shape = reader.numbers(f"{reader.number('I')}Q")[::-1]
    kind, offset = reader.numbers("IQ")
    return name, shape, kind, offset


def _tensor(content: bytes, start: int, shape: tuple[int, ...], kind: int) -> Floats:
    if kind not in _KINDS:
        raise ValueError(
            f"tensors must be of the types {sorted(_KINDS)} (F32, Q4_1, Q8_0), got type {kind}"
        )
    weights, size, decoded = _KINDS[kind]
    blocks = math.prod(shape) // weights
    raw = np.frombuffer(content, np.uint8, blocks * size, start).reshape(blocks, size)
    return decoded(raw).reshape(shape)


def _halves(raw: Bytes) -> Floats:
    """Pairs of bytes as float16."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _f32(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float32)


def _q4_1(raw: Bytes) -> Floats:
    scale, least, packed = _halves(raw[:, :2]), _halves(raw[:, 2:4]), raw[:, 4:]
    return scale * np.concatenate([packed & 15, packed >> 4], 1).astype(np.float32) + least


def _q8_0(raw: Bytes) -> Floats:
    return _halves(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32)


# by GGUF's number: weights and bytes of a block, and what they decode to
_KINDS: dict[int, tuple[int, int, Callable[[Bytes], Floats]]] = {
    0: (1, 4, _f32),
    3: (BLOCK, 20, _q4_1),
    8: (BLOCK, 34, _q8_0),
}


if __name__ == "__main__":
    main()
