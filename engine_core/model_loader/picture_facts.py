"""What a processor must know to prepare a checkpoint's pictures: published fields alone, nothing that is executed."""

from __future__ import annotations

from typing import Any

from engine_core.model_loader.checkpoint import Checkpoint


def picture_facts(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The fields of ``text_core.pictures.base.PictureFacts``, for JSON; None if the model takes no pictures."""
    vision, shape = checkpoint.vision, checkpoint.spec.vision
    if vision is None or shape is None:
        return None
    return {
        "architecture": checkpoint.text_of,
        "config": checkpoint.fields,
        "preprocessor": vision.preprocessor,
        "limit": shape.limit,
        "max_tokens": shape.max_tokens,
    }
