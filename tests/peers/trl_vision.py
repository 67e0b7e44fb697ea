"""The models of images and text that TRL's tests train, small: their configurations and their
processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers

LAYERS = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
TEXT = {**LAYERS, "hidden_size": 16, "num_key_value_heads": 2}
QWEN_LOOK = {"hidden_size": 16, "num_heads": 4, "depth": 2}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
GEMMA4_TOKENS, GEMMA4_PATCHES = (
    70,
    630,
)  # the fewest tokens of an image that its processor takes, 9 patches each

QWEN_MARKS = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
}  # fmt: skip
LLAVA_MARKS = {"image_token": "<image>"}
GEMMA3_MARKS = {
    "image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
}  # fmt: skip
GEMMA4_MARKS = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
TURNS = ["<bos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|video|>"]
SPECIAL = [
    *TURNS,
    *(
        mark
        for marks in (QWEN_MARKS, LLAVA_MARKS, GEMMA3_MARKS, GEMMA4_MARKS)
        for mark in marks.values()
    ),
]

# TRL has no template of Llava's
LLAVA_TEMPLATE = """\
{% for message in messages %}{{ message['role'].upper() + ': ' }}\
{% if message['content'] is string %}{{ message['content'] }}{% else %}\
{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\\n' }}{% endfor %}\
{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}\
{% endif %}{{ '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"""


@dataclass(frozen=True, kw_only=True)
class Vision:
    """How to make one.

    Args:
        kind: the model's class.
        marks: the special tokens that its processor asks the tokenizer for.
        config: the configuration's arguments from the tokenizer and what it says of itself
            (``vocab_size`` and so on).
        processor: makes the processor from the tokenizer.
        template: name of a chat template of TRL's.
    """

    kind: str
    marks: dict[str, str]
    config: Callable[[Any, dict[str, Any]], dict[str, Any]]
    processor: Callable[[Any], Any]
    template: str | None = None


@dataclass(frozen=True, kw_only=True)
class Qwen:
    """The arguments of a model of the Qwen family."""

    rope: dict[str, Any]
    look: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)

    def __call__(self, tokenizer: Any, ids: dict[str, Any]) -> dict[str, Any]:
        rope = {"rope_type": "default", "rope_theta": 10000.0, **self.rope}
        named = ("image", "image_token"), ("video", "video_token")
        around = ("vision_start", "vision_bos_token"), ("vision_end", "vision_eos_token")
        tokens = {
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(QWEN_MARKS[mark])
            for name, mark in named + around
        }
        return {
            "text_config": {**TEXT, **ids, "rope_parameters": rope, **self.text},
            "vision_config": {**QWEN_LOOK, **self.look},
            **tokens,
        }


def _qwen_processor(kind: str, image: str, video: str, **sizes: Any) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        return getattr(transformers, kind)(
            image_processor=getattr(transformers, image)(
                min_pixels=28 * 28, max_pixels=56 * 56, **sizes
            ),
            video_processor=getattr(transformers, video)(),
            tokenizer=tokenizer,
            chat_template=tokenizer.chat_template,
        )

    return make


_qwen2_vl = _qwen_processor("Qwen2VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor")
_qwen2_5_vl = _qwen_processor(
    "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"
)
_qwen3_vl = _qwen_processor(
    "Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", patch_size=16
)


def _gemma3(tokenizer: Any, ids: dict[str, Any]) -> dict[str, Any]:
    return {
        "text_config": {**TEXT, **ids, "head_dim": 8},
        "vision_config": {
            **LAYERS,
            "hidden_size": 16,
            "image_size": 56,
            "patch_size": 14,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": 16,
        "boi_token_index": tokenizer.boi_token_id,
        "eoi_token_index": tokenizer.eoi_token_id,
        "image_token_index": tokenizer.image_token_id,
    }


def _gemma3_processor(tokenizer: Any) -> Any:
    return transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessor(size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=16,
    )


def _gemma4(tokenizer: Any, ids: dict[str, Any]) -> dict[str, Any]:
    text = {
        "head_dim": 8, "global_head_dim": 8, "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": ids["vocab_size"],
    }  # fmt: skip
    look = {
        "hidden_size": 16, "head_dim": 8, "num_key_value_heads": 2,
        "position_embedding_size": GEMMA4_PATCHES, "default_output_length": GEMMA4_TOKENS,
    }  # fmt: skip
    return {
        "text_config": {**TEXT, **ids, **text},
        "vision_config": {**LAYERS, **look},
        "audio_config": None,
        "image_token_id": tokenizer.image_token_id,
        "boi_token_id": tokenizer.boi_token_id,
        "eoi_token_id": tokenizer.eoi_token_id,
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video|>"),
        "audio_token_id": tokenizer.audio_token_id,
    }


def _gemma4_processor(tokenizer: Any) -> Any:
    return transformers.Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        image_processor=transformers.Gemma4ImageProcessor(max_soft_tokens=GEMMA4_TOKENS),
        tokenizer=tokenizer,
        video_processor=transformers.Gemma4VideoProcessor(),
        chat_template=tokenizer.chat_template,
        image_seq_length=GEMMA4_TOKENS,
    )


def _llava(tokenizer: Any, ids: dict[str, Any]) -> dict[str, Any]:
    look = {**LAYERS, "hidden_size": 16, "image_size": 28, "patch_size": 14, "projection_dim": 16}
    return {
        "text_config": {**TEXT, **ids, "model_type": "llama"},
        "vision_config": {**look, "model_type": "clip_vision_model"},
        "image_token_index": tokenizer.image_token_id,
        "image_seq_length": 4,
    }


def _llava_next(tokenizer: Any, ids: dict[str, Any]) -> dict[str, Any]:
    return {**_llava(tokenizer, ids), "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]}


def _llava_processor(
    kind: str, image_processor: Callable[[], Any], template: str | None
) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        return getattr(transformers, kind)(
            image_processor=image_processor(),
            tokenizer=tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template or tokenizer.chat_template,
        )

    return make


def _llava_images() -> Any:
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )


def _llava_next_images() -> Any:
    return transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 28},
        crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
    )


_QWEN3_5 = Qwen(
    rope={"mrope_interleaved": True, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.25},
    look={"out_hidden_size": 16, "intermediate_size": 32},
    text={"head_dim": 24, **LINEAR},
)

VISION = {
    "tiny-Qwen2VLForConditionalGeneration": Vision(
        kind="Qwen2VLForConditionalGeneration",
        template="qwen2_5_vl",
        marks=QWEN_MARKS,
        config=Qwen(rope={"mrope_section": [1, 1]}, look={"embed_dim": 64}),
        processor=_qwen2_vl,
    ),
    "tiny-Qwen2_5_VLForConditionalGeneration": Vision(
        kind="Qwen2_5_VLForConditionalGeneration",
        template="qwen2_5_vl",
        marks=QWEN_MARKS,
        config=Qwen(
            rope={"mrope_section": [1, 1]},
            look={"fullatt_block_indexes": [1], "out_hidden_size": 16, "intermediate_size": 32},
        ),
        processor=_qwen2_5_vl,
    ),
    "tiny-Qwen3VLForConditionalGeneration": Vision(
        kind="Qwen3VLForConditionalGeneration",
        template="qwen3_vl",
        marks=QWEN_MARKS,
        config=Qwen(
            rope={"mrope_interleaved": True, "mrope_section": [2, 2, 2]},
            look={"deepstack_visual_indexes": [1], "out_hidden_size": 16, "intermediate_size": 32},
            text={"head_dim": 12},
        ),
        processor=_qwen3_vl,
    ),
    "tiny-Qwen3_5ForConditionalGeneration-NoThink": Vision(
        kind="Qwen3_5ForConditionalGeneration",
        template="qwen3_5_nothink",
        marks=QWEN_MARKS,
        config=_QWEN3_5,
        processor=_qwen3_vl,
    ),
    "tiny-Qwen3_5MoeForConditionalGeneration-3.6": Vision(
        kind="Qwen3_5MoeForConditionalGeneration",
        template="qwen3_6",
        marks=QWEN_MARKS,
        config=Qwen(rope=_QWEN3_5.rope, look=_QWEN3_5.look, text={**_QWEN3_5.text, **EXPERTS}),
        processor=_qwen3_vl,
    ),
    "tiny-Gemma3ForConditionalGeneration": Vision(
        kind="Gemma3ForConditionalGeneration",
        template="gemma3",
        marks=GEMMA3_MARKS,
        config=_gemma3,
        processor=_gemma3_processor,
    ),
    "tiny-Gemma4ForConditionalGeneration": Vision(
        kind="Gemma4ForConditionalGeneration",
        template="gemma4",
        marks=GEMMA4_MARKS,
        config=_gemma4,
        processor=_gemma4_processor,
    ),
    "tiny-LlavaForConditionalGeneration": Vision(
        kind="LlavaForConditionalGeneration",
        marks=LLAVA_MARKS,
        config=_llava,
        processor=_llava_processor("LlavaProcessor", _llava_images, LLAVA_TEMPLATE),
    ),
    "tiny-LlavaNextForConditionalGeneration": Vision(
        kind="LlavaNextForConditionalGeneration",
        template="llava_next",
        marks=LLAVA_MARKS,
        config=_llava_next,
        processor=_llava_processor("LlavaNextProcessor", _llava_next_images, None),
    ),
}
