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

PER_LAYER = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 199}
EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48}
ODD = GEMMA | {
    "hidden_size": 70,
    "intermediate_size": 101,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 18,
    "global_head_dim": 40,
    "tie_word_embeddings": True,
}
"""Sizes that are not multiples of 16."""

SHAPES: dict[str, PretrainedConfig] = {
    "gemma4_text": Gemma4TextConfig(
        **(GEMMA | PER_LAYER), rope_parameters=THETAS, num_kv_shared_layers=3, use_double_wide_mlp=True
    ),
    "gemma4_text-plain": Gemma4TextConfig(**GEMMA, use_bidirectional_attention="vision"),
    "gemma4_text-keys-are-values-padded-tied-capped": Gemma4TextConfig(
        **ODD,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        attention_bias=True,
        final_logit_softcapping=4.0,
        rope_parameters=THETAS,
    ),
    "gemma4_text-experts": Gemma4TextConfig(
        **(GEMMA | EXPERTS | {"initializer_range": 0.2}),
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        rope_parameters=THETAS,
    ),
    "gemma4_text-shared-caches-alike": Gemma4TextConfig(
        **(GEMMA | PER_LAYER | {"global_head_dim": 16, "layer_types": [FULL] * 6}), num_kv_shared_layers=4
    ),
    "gemma4_text-everything-padded": Gemma4TextConfig(
        **(ODD | PER_LAYER | EXPERTS | {"hidden_size_per_layer_input": 12, "moe_intermediate_size": 37}),
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
        num_kv_shared_layers=2,
        attention_bias=True,
        rope_parameters=THETAS,
    ),
}
