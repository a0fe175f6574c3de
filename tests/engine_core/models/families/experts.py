"""Families with experts and attention over keys and values."""

from __future__ import annotations

from typing import Any

from transformers import (
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from tests.engine_core.models.tiny_models import LLAMA3, SIZES, YARN

EXPERTS: dict[str, Any] = {"moe_intermediate_size": 48, "num_experts_per_tok": 3}
GLM = {key: value for key, value in SIZES.items() if key != "pad_token_id"} | EXPERTS | {"n_routed_experts": 8}
LLAMA4: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "intermediate_size_mlp": 112,
    "num_local_experts": 6,
    "head_dim": 16,
    "attention_chunk_size": 37,
    "floor_scale": 40,
    "attn_scale": 0.3,
}

SHAPES: dict[str, PretrainedConfig] = {
    "mixtral": MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window-one-expert-padded": MixtralConfig(
        **(SIZES | {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 70}),
        num_local_experts=3,
        num_experts_per_tok=1,
        sliding_window=24,
    ),
    "qwen2_moe": Qwen2MoeConfig(**SIZES, **EXPERTS, num_experts=7, shared_expert_intermediate_size=80),
    "qwen2_moe-some-dense-tied-normalized": Qwen2MoeConfig(
        **SIZES,
        **EXPERTS,
        num_experts=4,
        shared_expert_intermediate_size=33,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        qkv_bias=False,
        tie_word_embeddings=True,
    ),
    "qwen2_moe-window": Qwen2MoeConfig(
        **SIZES,
        **EXPERTS,
        num_experts=4,
        shared_expert_intermediate_size=40,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=1,
    ),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=8, norm_topk_prob=True, head_dim=32),
    "qwen3_moe-every-other-padded": Qwen3MoeConfig(
        **(SIZES | {"hidden_size": 70, "intermediate_size": 107}),
        **(EXPERTS | {"moe_intermediate_size": 37, "num_experts_per_tok": 2}),
        num_experts=3,
        decoder_sparse_step=2,
        head_dim=18,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "qwen3_moe-window": Qwen3MoeConfig(
        **SIZES, **EXPERTS, num_experts=4, head_dim=16, use_sliding_window=True, sliding_window=24
    ),
    "glm4_moe": Glm4MoeConfig(**GLM, n_group=1, topk_group=1, head_dim=32, attention_bias=True),
    "glm4_moe-groups-norms": Glm4MoeConfig(
        **GLM, n_group=4, topk_group=2, head_dim=16, use_qk_norm=True, routed_scaling_factor=2.5, n_shared_experts=2
    ),
    "gpt_oss": GptOssConfig(
        **SIZES, num_local_experts=6, num_experts_per_tok=2, head_dim=16, sliding_window=24, rope_parameters=YARN
    ),
    "gpt_oss-padded-tied": GptOssConfig(
        **(SIZES | {"hidden_size": 70, "intermediate_size": 37, "num_attention_heads": 3, "num_key_value_heads": 1}),
        num_local_experts=3,
        num_experts_per_tok=3,
        head_dim=18,
        sliding_window=7,
        swiglu_limit=1.5,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters=YARN | {"truncate": False},
    ),
    "llama4_text": Llama4TextConfig(**LLAMA4, rope_parameters=LLAMA3),
    "llama4_text-some-dense-biases-padded-tied": Llama4TextConfig(
        **(LLAMA4 | {"hidden_size": 70, "intermediate_size": 37, "intermediate_size_mlp": 101, "head_dim": 18}),
        num_experts_per_tok=2,
        interleave_moe_layer_step=2,
        no_rope_layers=[1, 0, 1, 0],
        layer_types=["chunked_attention", "chunked_attention", "full_attention", "full_attention"],
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "llama4_text-chunk-of-blocks-mqa": Llama4TextConfig(
        **(LLAMA4 | {"num_key_value_heads": 1, "attention_chunk_size": 32, "num_local_experts": 3}),
        no_rope_layers=[1, 0, 1, 1],
        rope_parameters=LLAMA3 | {"high_freq_factor": 1.0},
    ),
}
