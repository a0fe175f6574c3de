"""Tiny random checkpoints of multimodal classes, saved by transformers, and random pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import PretrainedConfig, PreTrainedModel

from engine_core.media import Picture, PictureShape, View

EAGER = {"attn_implementation": "eager"}


def make(config: PretrainedConfig, architecture: str) -> PreTrainedModel:
    """A random model in float32 whose every tensor matters."""
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, architecture)._from_config(config, **EAGER).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2).add_(1.0 if parameter.ndim == 1 else 0.0)
    return model.eval()


def save(model: PreTrainedModel, directory: Path, preprocessor: Mapping[str, Any]) -> Path:
    """As transformers saves it, with the preprocessor's configuration."""
    model.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return directory


def random_view(height: int, width: int, seed: int = 0) -> View:
    """A view of noise."""
    pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return View(height, width, pixels.numpy().tobytes())


def random_picture(shape: PictureShape, height: int, width: int, seed: int = 0) -> Picture:
    """A picture of one view of noise."""
    return Picture.of(shape, [random_view(height, width, seed)])


def image_of(view: View) -> Image.Image:
    """What a processor of transformers takes."""
    return Image.frombytes("RGB", (view.width, view.height), view.pixels)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Within ``tolerance`` of the greatest."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()
