"""Gemma 4: unlike layers, shared caches, values that are keys, embeddings per layer, and experts."""

from __future__ import annotations

from typing import Any

from transformers import Gemma4TextConfig, PretrainedConfig

from tests.engine_core.models.tiny_models import SIZES

FULL, WINDOW = "full_attention", "sliding_attention"
GEMMA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "layer_types": [WINDOW, WINDOW, FULL] * 2,
    "initializer_range": 0.1,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": False,
}
THETAS = {
    FULL: {"rope_type": "proportional", "rope_theta": 400.0, "partial_rotary_factor": 0.5},
    WINDOW: {"rope_type": "default", "rope_theta": 100.0},
}

SHAPES: dict[str, PretrainedConfig] = {
    "gemma4_text-plain": Gemma4TextConfig(**GEMMA, rope_parameters=THETAS),
}
