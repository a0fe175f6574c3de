"""Families with latent attention, and experts."""

from __future__ import annotations

from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig, PretrainedConfig

from tests.engine_core.models.families.experts import EXPERTS
from tests.engine_core.models.tiny_models import SIZES, YARN

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
LATENTS = {"kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
LATENT = {key: value for key, value in (SIZES | EXPERTS | HEADS | LATENTS).items() if key != "pad_token_id"} | {
    "n_routed_experts": 8
}

SHAPES: dict[str, PretrainedConfig] = {
    "deepseek_v2-no-query-latent": DeepseekV2Config(
        **(LATENT | {"q_lora_rank": None}), n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.5
    ),
    "deepseek_v2-groups-yarn-padded": DeepseekV2Config(
        **(LATENT | {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 40}),
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
        attention_bias=True,
    ),
    "deepseek_v3": DeepseekV3Config(**LATENT, n_group=4, topk_group=2, first_k_dense_replace=1),
    "deepseek_v3-halves-tied": DeepseekV3Config(
        **LATENT,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
        rope_interleave=False,
        norm_topk_prob=False,
        rope_parameters=YARN | {"mscale_all_dim": 1.0},
        tie_word_embeddings=True,
    ),
    "deepseek_v3-dynamic": DeepseekV3Config(
        **LATENT,
        n_group=1,
        topk_group=1,
        rope_parameters={"rope_type": "dynamic", "factor": 8.0, "mscale_all_dim": 1.0},
    ),
    "deepseek_v3-no-shared": DeepseekV3Config(
        **LATENT, n_group=2, topk_group=1, first_k_dense_replace=1, n_shared_experts=0
    ),
    "glm4_moe_lite": Glm4MoeLiteConfig(**LATENT),
    "glm4_moe_lite-sparse-first": Glm4MoeLiteConfig(
        **(LATENT | {"v_head_dim": 32}), mlp_layer_types=["sparse", "dense", "sparse"], routed_scaling_factor=1.0
    ),
}
