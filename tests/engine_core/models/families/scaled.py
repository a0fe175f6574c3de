"""Families that scale or cap embeddings, scores, residuals and logits: Gemma and Granite."""

from __future__ import annotations

from typing import Any

from transformers import Gemma2Config, Gemma3TextConfig, GemmaConfig, GraniteConfig, PretrainedConfig

from tests.engine_core.models.tiny_models import LINEAR, SIZES

GEMMA: dict[str, Any] = SIZES | {"head_dim": 16, "query_pre_attn_scalar": 24, "initializer_range": 0.1}

SHAPES: dict[str, PretrainedConfig] = {
    "gemma": GemmaConfig(**SIZES, head_dim=24),
    "gemma-untied-biases-padded": GemmaConfig(
        **(SIZES | {"hidden_size": 69, "num_attention_heads": 3, "num_key_value_heads": 1}),
        head_dim=18,
        hidden_act="gelu",
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "gemma2": Gemma2Config(**GEMMA, sliding_window=24, attn_logit_softcapping=3.0, final_logit_softcapping=8.0),
    "gemma2-untied-padded-biases": Gemma2Config(
        **(GEMMA | {"hidden_size": 69, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 18}),
        sliding_window=7,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=False,
        attention_bias=True,
    ),
    "gemma3_text": Gemma3TextConfig(**GEMMA, sliding_window=24, sliding_window_pattern=2),
    "gemma3_text-scaled-rope-capped": Gemma3TextConfig(
        **(GEMMA | {"num_key_value_heads": 4, "num_hidden_layers": 4}),
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=5.0,
        rope_parameters={
            "full_attention": LINEAR,
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "granite": GraniteConfig(
        **SIZES, embedding_multiplier=6.0, attention_multiplier=0.1, residual_multiplier=0.4, logits_scaling=3.0
    ),
    "granite-tied-biases-padded": GraniteConfig(
        **(SIZES | {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 101}),
        embedding_multiplier=2.5,
        attention_multiplier=0.3,
        residual_multiplier=0.7,
        logits_scaling=0.5,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
}
