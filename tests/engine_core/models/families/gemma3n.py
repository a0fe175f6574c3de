"""Gemma 3n: several residual streams, sparse activations, shared caches, embeddings per layer."""

from __future__ import annotations

from typing import Any

from transformers import Gemma3nTextConfig, PretrainedConfig

from tests.engine_core.models.tiny_models import SIZES

FULL, WINDOW = "full_attention", "sliding_attention"
GEMMA3N: dict[str, Any] = SIZES | {
    "num_hidden_layers": 5,
    "head_dim": 16,
    "sliding_window": 24,
    "layer_types": [WINDOW, FULL, WINDOW, WINDOW, FULL],
    "initializer_range": 0.1,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 190,
    "num_kv_shared_layers": 2,
    "laurel_rank": 12,
    "activation_sparsity_pattern": [0.9, 0.0, 0.6, 0.3, 0.0],
}
"""The last tokens have no embeddings per layer of their own."""

SHAPES: dict[str, PretrainedConfig] = {
    "gemma3n_text": Gemma3nTextConfig(**GEMMA3N),
    "gemma3n_text-padded-untied-three-streams": Gemma3nTextConfig(
        **(GEMMA3N | {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 18}),
        tie_word_embeddings=False,
        altup_num_inputs=3,
        altup_active_idx=1,
        altup_correct_scale=False,
        rope_parameters={
            FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 400.0},
            WINDOW: {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "gemma3n_text-sizes-of-layers-own-caches": Gemma3nTextConfig(
        **GEMMA3N
        | {
            "intermediate_size": [101, 112, 80, 112, 64],
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 199,
            "hidden_size_per_layer_input": 12,
        },
    ),
}
