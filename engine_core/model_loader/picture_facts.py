"""What a processor must know to prepare a checkpoint's pictures: published fields alone, nothing that is executed."""

from __future__ import annotations

from typing import Any

from engine_core.config import ModelConfig
from engine_core.model_loader.checkpoint import Checkpoint

_DEFAULT_LIMIT = 64
"""Pictures of a prompt, unless ``limit_mm_per_prompt`` says otherwise."""


def picture_facts(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Any] | None:
    """The fields of ``text_core.pictures.base.PictureFacts``, for JSON; None if the model takes no pictures."""
    vision = checkpoint.vision
    if vision is None:
        return None
    limits = getattr(config, "limit_mm_per_prompt", None) or {}
    return {
        "architecture": checkpoint.text_of,
        "config": vision.model.facts(checkpoint.fields),
        "preprocessor": vision.preprocessor,
        "limit": limits.get("image", _DEFAULT_LIMIT),
        "max_tokens": vision.shape.max_tokens,
    }
