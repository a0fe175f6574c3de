"""Families in which only some layers attend, and the others keep a state."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from tests.engine_core.models.families.experts import EXPERTS
from tests.engine_core.models.tiny_models import SIZES, YARN

_LINEAR, _FULL = "linear_attention", "full_attention"
_EPS = {"rms_norm_eps": 1e-4}
"""The outputs of a recurrence are normalized, and small where a query finds little. With 1e-6, half an ulp of the
embeddings moves transformers' own logits of some of these models by up to 5e-4."""
DELTA_NET: dict[str, Any] = _EPS | {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
PADDED: dict[str, Any] = {
    "hidden_size": 70,
    "intermediate_size": 107,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
    "attention_bias": True,
    "tie_word_embeddings": True,
    "layer_types": [_FULL, _LINEAR, _LINEAR],
}
MROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5} | {
    "mrope_section": [3, 3, 2],
    "mrope_interleaved": True,
}

SHAPES: dict[str, PretrainedConfig] = {
    "qwen3_5_text": Qwen3_5TextConfig(**SIZES | DELTA_NET, rope_parameters=MROPE),
    "qwen3_5_text-one-key-head-biases-tied-padded": Qwen3_5TextConfig(**SIZES | PADDED),
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig(
        **SIZES | DELTA_NET | EXPERTS, num_experts=8, shared_expert_intermediate_size=80
    ),
    "qwen3_5_moe_text-one-key-head-biases-tied-padded": Qwen3_5MoeTextConfig(
        **SIZES | PADDED | EXPERTS | {"moe_intermediate_size": 37, "num_experts_per_tok": 1},
        num_experts=3,
        shared_expert_intermediate_size=33,
        rope_parameters=YARN | {"partial_rotary_factor": 0.25},
    ),
    "qwen3_next": Qwen3NextConfig(**SIZES | DELTA_NET | EXPERTS, num_experts=8, shared_expert_intermediate_size=80),
    "qwen3_next-some-dense-biases-tied-padded": Qwen3NextConfig(
        **SIZES | PADDED | EXPERTS | _EPS | {"moe_intermediate_size": 37, "linear_num_key_heads": 3},
        num_experts=4,
        shared_expert_intermediate_size=33,
        norm_topk_prob=False,
        decoder_sparse_step=2,
    ),
    "qwen3_next-mlp-only": Qwen3NextConfig(
        **SIZES | DELTA_NET | EXPERTS | {"linear_num_value_heads": 6},
        num_experts=4,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1, 3],
    ),
}
