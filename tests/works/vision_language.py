"""A tiny vision–language model, and rows with pictures whose patches lie in one tensor for the
whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from works import data
from works.cases import Setting
from works.data import Collated

SIDE = 4  # patches along each side of a picture
MERGED = 2  # that become one token, along each side
PIXELS = 3 * 2 * 4 * 4  # of a patch: channels, frames, height, width
TOKENS = {
    "image_token_id": 45,
    "video_token_id": 46,
    "vision_start_token_id": 47,
    "vision_end_token_id": 48,
}
TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
}
VISION = {
    "hidden_size": 32,
    "num_heads": 2,
    "embed_dim": 32,
    "depth": 1,
    "patch_size": 4,
    "spatial_merge_size": MERGED,
}


def rows() -> list[data.Row]:
    """A picture, then a text."""
    generator = torch.Generator().manual_seed(0)
    picture = [TOKENS["image_token_id"]] * (SIDE // MERGED) ** 2
    prefix = [TOKENS["vision_start_token_id"], *picture, TOKENS["vision_end_token_id"]]
    return [
        {
            "input_ids": prefix + row,
            "labels": [data.IGNORED] * len(prefix) + row,
            "mm_token_type_ids": [0, *(1 for _ in picture), 0, *(0 for _ in row)],
            "pixel_values": torch.randn(SIDE * SIDE, PIXELS, generator=generator).tolist(),
            "image_grid_thw": [[1, SIDE, SIDE]],
        }
        for row in data.ids()
    ]


class WithPictures(Collated):
    """Pads texts, and puts the patches of all pictures end to end."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        apart = ("pixel_values", "image_grid_thw")
        texts = [{name: value for name, value in row.items() if name not in apart} for row in rows]
        return {
            **super().__call__(texts),
            **{name: torch.cat([torch.as_tensor(row[name]) for row in rows]) for name in apart},
        }


def model_of(setting: Setting) -> Any:
    text = TEXT | {"bos_token_id": None, "eos_token_id": 1}
    config = Qwen2VLConfig(text_config=text, vision_config=VISION, **TOKENS)
    config.text_config.attention_dropout = setting.dropout
    return Qwen2VLForConditionalGeneration(config).train()


def given(setting: Setting) -> dict[str, Any]:
    """What a trainer is given."""
    return {
        "model": model_of(setting),
        "train_dataset": datasets.Dataset.from_list(rows()),
        "data_collator": WithPictures(),
    }
