"""Pictures to prepare, and models' facts: deterministic, of any size and mode."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from typing import Any

from PIL import Image

from text_core.pictures.base import PictureFacts

TOKENS = {
    "<|image_pad|>": 900,
    "<start_of_image>": 901,
    "<image_soft_token>": 902,
    "<end_of_image>": 903,
    "<|image>": 904,
    "<|image|>": 905,
    "<image|>": 906,
    "<image>": 907,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2_5_VLForConditionalGeneration": {
        "image_token_id": 900,
        "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
    },
    "Qwen3VLForConditionalGeneration": {
        "image_token_id": 900,
        "vision_config": {"patch_size": 16, "spatial_merge_size": 2},
    },
    "Gemma3ForConditionalGeneration": {
        "boi_token_index": 901,
        "image_token_index": 902,
        "eoi_token_index": 903,
        "mm_tokens_per_image": 256,
        "vision_config": {"image_size": 896, "patch_size": 14},
    },
    "Gemma4ForConditionalGeneration": {
        "boi_token_id": 904,
        "image_token_id": 905,
        "eoi_token_id": 906,
        "vision_config": {"patch_size": 16, "pooling_kernel_size": 3},
    },
    "SmolVLMForConditionalGeneration": {
        "image_token_id": 907,
        "scale_factor": 4,
        "vision_config": {"image_size": 512, "patch_size": 16},
    },
    "Idefics3ForConditionalGeneration": {
        "image_token_id": 907,
        "scale_factor": 2,
        "vision_config": {"image_size": 364, "patch_size": 14},
    },
    "DeepseekOCRForCausalLM": {},
    "DeepseekOCR2ForCausalLM": {},
}


def facts_of(
    architecture: str, preprocessor: Mapping[str, Any] | None = None, max_tokens: int = 1 << 20
) -> PictureFacts:
    return PictureFacts(architecture, CONFIGS[architecture], preprocessor or {}, 64, max_tokens, TOKENS)


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Random pixels over a slope, so that a shift by one pixel shows, and so does a wrong filter."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    data = random.Random(f"{width} {height} {mode} {seed}").randbytes(width * height * bands)
    return Image.frombytes(mode, (width, height), data)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
