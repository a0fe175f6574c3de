"""Tiny random checkpoints of multimodal classes, saved by transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from tests.engine_core.models.tiny_models import EAGER


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


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Within ``tolerance`` of the greatest."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()
