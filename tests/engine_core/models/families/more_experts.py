"""Further families with experts, whose parts others have, too."""

from __future__ import annotations

from typing import Any

from transformers import (
    Dots1Config,
    Ernie4_5_MoeConfig,
    ExaoneMoeConfig,
    FlexOlmoConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    HYV3Config,
    MellumConfig,
    MiniMaxM2Config,
    OlmoeConfig,
    PretrainedConfig,
    SolarOpenConfig,
)

from tests.engine_core.models.families.dense import FULL, ODD, THETA, WINDOW
from tests.engine_core.models.families.experts import EXPERTS, GLM
from tests.engine_core.models.tiny_models import SIZES, YARN

FOUR: dict[str, Any] = SIZES | {"num_hidden_layers": 4}
UNSIZED = {key: value for key, value in ODD.items() if key != "intermediate_size"}
MULTIPLIERS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
_FEW = {"num_local_experts": 3, "num_experts_per_tok": 2}
_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": "auto"}
_MAMBA_PADDED = {"mamba_n_heads": 9, "mamba_d_head": 16}

SHAPES: dict[str, PretrainedConfig] = {
    "olmoe": OlmoeConfig(**SIZES, num_experts=7, num_experts_per_tok=3),
    "olmoe-mqa-biases-tied-padded": OlmoeConfig(
        **(ODD | {"intermediate_size": 37}),
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "flex_olmo": FlexOlmoConfig(**SIZES, num_experts=5, num_experts_per_tok=2),
    "flex_olmo-mqa-biases-tied-padded": FlexOlmoConfig(
        **(ODD | {"intermediate_size": 37}),
        num_experts=3,
        num_experts_per_tok=1,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "minimax_m2": MiniMaxM2Config(
        **SIZES,
        head_dim=32,
        num_local_experts=6,
        num_experts_per_tok=2,
        rope_parameters=THETA | {"partial_rotary_factor": 0.5},
    ),
    "minimax_m2-whole-heads-mqa-tied-padded": MiniMaxM2Config(
        **(ODD | {"intermediate_size": 37}), head_dim=18, **_FEW, rope_parameters=dict(YARN), tie_word_embeddings=True
    ),
    "ernie4_5_moe": Ernie4_5_MoeConfig(
        **SIZES, moe_intermediate_size=48, moe_k=3, moe_num_experts=8, tie_word_embeddings=False
    ),
    "ernie4_5_moe-every-other-unshared-padded": Ernie4_5_MoeConfig(
        **(ODD | {"num_hidden_layers": 6}),
        moe_intermediate_size=37,
        moe_k=2,
        moe_num_experts=5,
        moe_num_shared_experts=0,
        moe_layer_start_index=2,
        moe_layer_end_index=4,
        moe_layer_interval=2,
    ),
    "dots1": Dots1Config(**GLM, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=2.5),
    "dots1-windows-groups-biases-tied": Dots1Config(
        **(GLM | {"num_hidden_layers": 4}),
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        layer_types=[FULL, WINDOW, WINDOW, FULL],
        sliding_window=24,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "granitemoe": GraniteMoeConfig(**SIZES, **MULTIPLIERS, num_local_experts=6, num_experts_per_tok=3),
    "granitemoe-mqa-biases-tied-padded": GraniteMoeConfig(
        **(ODD | {"intermediate_size": 37}), **_FEW, attention_bias=True, tie_word_embeddings=True
    ),
    "granitemoeshared": GraniteMoeSharedConfig(**SIZES, **MULTIPLIERS, **_FEW, shared_intermediate_size=80),
    "granitemoeshared-none-tied-padded": GraniteMoeSharedConfig(
        **(ODD | {"intermediate_size": 37}), **MULTIPLIERS, **_FEW, shared_intermediate_size=0, tie_word_embeddings=True
    ),
    "granitemoehybrid": GraniteMoeHybridConfig(
        **SIZES,
        **MULTIPLIERS,
        **_HYBRID,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=80,
        layer_types=["attention"] * 3,
        position_embedding_type="rope",
    ),
    "granitemoehybrid-experts-no-rotation-tied-padded": GraniteMoeHybridConfig(
        **(ODD | {"intermediate_size": 37}),
        **MULTIPLIERS,
        **_MAMBA_PADDED,
        **_FEW,
        shared_intermediate_size=33,
        layer_types=["attention"] * 3,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "exaone_moe": ExaoneMoeConfig(
        **FOUR, **EXPERTS, num_experts=8, n_group=4, topk_group=2, sliding_window=24, first_k_dense_replace=1
    ),
    "exaone_moe-mqa-tied-padded": ExaoneMoeConfig(
        **ODD,
        **EXPERTS,
        num_experts=5,
        num_shared_experts=2,
        layer_types=[WINDOW, FULL, WINDOW],
        mlp_layer_types=["sparse", "dense", "sparse"],
        sliding_window=37,
        norm_topk_prob=False,
        tie_word_embeddings=True,
    ),
    "hy_v3": HYV3Config(**SIZES, **EXPERTS, num_experts=8, head_dim=32),
    "hy_v3-mqa-biases-tied-padded": HYV3Config(
        **ODD,
        **EXPERTS,
        num_experts=5,
        num_shared_experts=2,
        head_dim=18,
        router_scaling_factor=0.7,
        mlp_layer_types=["sparse", "dense", "sparse"],
        enable_moe_fp32_combine=False,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "solar_open": SolarOpenConfig(
        **{key: value for key, value in GLM.items() if key != "intermediate_size"},
        n_group=4,
        topk_group=2,
        n_shared_experts=2,
        head_dim=16,
    ),
    "solar_open-mqa-biases-tied-padded": SolarOpenConfig(
        **{key: value for key, value in UNSIZED.items() if key != "pad_token_id"},
        **EXPERTS,
        n_routed_experts=5,
        head_dim=24,
        norm_topk_prob=False,
        rope_parameters=dict(YARN),
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "mellum": MellumConfig(
        **SIZES,
        **EXPERTS,
        num_local_experts=8,
        head_dim=32,
        sliding_window=24,
        layer_types=[WINDOW, FULL, WINDOW],
        rope_parameters={FULL: dict(YARN), WINDOW: dict(THETA)},
    ),
    "mellum-mqa-biases-tied-padded": MellumConfig(
        **ODD,
        **EXPERTS,
        num_local_experts=5,
        head_dim=18,
        norm_topk_prob=False,
        mlp_layer_types=["sparse", "dense", "sparse"],
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
