"""Find a checkpoint, read what it says about itself, and resolve that against the options.

No weight is read here: ``models.registry.build_model`` does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PretrainedConfig

from engine_core.config import LoadConfig, ModelConfig, ModelSpec


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was found and understood; its weights are still on disk."""

    path: Path
    """Directory of config.json (a downloaded snapshot's directory for a hub id)."""
    spec: ModelSpec
    """Resolved: architecture, vocabulary, max_model_len, eos ids, dtype, default sampling."""
    hf_config: PretrainedConfig
    dtype: torch.dtype
    """Of weights, activations and KV cache."""
    load_format: str
    """As in ``LoadConfig``."""
    seed: int
    """Of dummy weights."""


def open_checkpoint(config: ModelConfig, load: LoadConfig) -> Checkpoint:
    """Find the checkpoint that ``config.model`` names (a directory or a hub id) and read its configuration.

    Raises ``CheckpointError`` when it is missing or damaged, ``UnsupportedModelError`` when it asks for something the
    engine does not have, ``ConfigError`` when ``max_model_len`` exceeds what it allows.
    """
    raise NotImplementedError
