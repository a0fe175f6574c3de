"""What the options say of pictures: how many a prompt has, how large they are, how they are prepared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import ConfigError
from engine_core.media import VisionShape

DEFAULT_LIMIT = 64
"""Most pictures of a prompt."""
MOST_PICTURES = 4096
DEFAULT_MAX_TOKENS = 4096
"""Of a picture, for families that shrink pictures to any size."""
_COUNTS = f'with a number of pictures from 0 to {MOST_PICTURES}, and of no other media, such as {{"image": 4}}'
_MOST_CHARACTERS = 65536


def picture_limit(config: ModelConfig) -> int:
    """Most pictures of a prompt. Raises ``ConfigError``."""
    given = _object("limit_mm_per_prompt", config.limit_mm_per_prompt, _COUNTS)
    limit = DEFAULT_LIMIT
    for name, value in given.items():
        count = value.get("count") if isinstance(value, dict) else value  # vLLM's longer spelling
        is_image = name == "image"
        if type(count) is not int or not 0 <= count <= (MOST_PICTURES if is_image else 0):
            raise ConfigError("limit_mm_per_prompt", config.limit_mm_per_prompt, f"a JSON object {_COUNTS}")
        limit = count if is_image else limit
    return limit


def preprocessor_overrides(config: ModelConfig) -> Mapping[str, Any]:
    """Fields that win over the checkpoint's preprocessor_config.json. Raises ``ConfigError``."""
    accepted = 'with fields of preprocessor_config.json, such as {"max_pixels": 1003520}'
    return _object("mm_processor_kwargs", config.mm_processor_kwargs, accepted)


def resolved(shape: VisionShape, config: ModelConfig, max_model_len: int) -> VisionShape:
    """``shape`` as the checkpoint has it, resolved against the options. Raises ``ConfigError``."""
    asked, largest = config.max_picture_tokens, shape.max_tokens
    if shape.shrinks:
        largest = min(largest, asked or DEFAULT_MAX_TOKENS, max_model_len - 1)
    elif asked is not None and asked < largest:
        accepted = f"at least {largest}, as this model's pictures are not shrunk to any size; leave it out"
        raise ConfigError("max_picture_tokens", asked, accepted)
    return replace(shape, max_tokens=largest, limit=picture_limit(config))


def _object(name: str, text: str | None, accepted: str) -> dict[str, Any]:
    """The JSON object of an option; empty if it is not given."""
    if text is None:
        return {}
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError("too long")
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ConfigError(name, text[:_MOST_CHARACTERS], f"a JSON object {accepted}")
    return given
