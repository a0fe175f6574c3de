"""Families with Mamba-2: Granite 4, Mamba-2 itself, and Nemotron-H."""

from __future__ import annotations

import math
from typing import Any

from transformers import GraniteMoeHybridConfig, Mamba2Config, NemotronHConfig, PretrainedConfig

from tests.engine_core.models.tiny_models import SIZES

MAMBA, FULL = "linear_attention", "full_attention"
MULTIPLIERS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
ODD: dict[str, Any] = SIZES | {
    "hidden_size": 66,
    "intermediate_size": 37,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
WITHOUT_ATTENTION: dict[str, Any] = {
    name: value
    for name, value in SIZES.items()
    if name in ("vocab_size", "hidden_size", "num_hidden_layers", "initializer_range", "bos_token_id", "eos_token_id")
} | {"pad_token_id": None}
WITHOUT_LAYERS: dict[str, Any] = {name: value for name, value in SIZES.items() if name != "num_hidden_layers"}
_ODD_WITHOUT_LAYERS = {name: value for name, value in ODD.items() if name != "num_hidden_layers"}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 56,
}
MIXER: dict[str, Any] = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16}


def limits_steps(config: PretrainedConfig) -> bool:
    """Whether the recurrence's steps are limited: transformers does it only for tokens that are computed together."""
    limited = config.time_step_min if config.model_type == "nemotron_h" else getattr(config, "time_step_limit", None)
    return limited not in (None, (0.0, math.inf), [0.0, math.inf], NemotronHConfig().time_step_min)


SHAPES: dict[str, PretrainedConfig] = {
    "granitemoehybrid-mamba": GraniteMoeHybridConfig(
        **SIZES,
        **MULTIPLIERS,
        mamba_n_heads=8,
        mamba_n_groups=2,
        mamba_d_state=16,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=80,
        layer_types=[MAMBA, FULL, MAMBA],
    ),
    "granitemoehybrid-mamba-experts-rotation-biases-limits-tied-padded": GraniteMoeHybridConfig(
        **ODD,
        **MULTIPLIERS,
        mamba_n_heads=6,
        mamba_n_groups=3,
        mamba_d_state=20,
        mamba_d_conv=3,
        mamba_conv_bias=False,
        mamba_proj_bias=True,
        time_step_limit=(0.3, 1.2),
        num_local_experts=5,
        num_experts_per_tok=2,
        shared_intermediate_size=33,
        layer_types=[MAMBA, MAMBA, FULL],
        position_embedding_type="rope",
        tie_word_embeddings=True,
    ),
    "mamba2": Mamba2Config(**WITHOUT_ATTENTION, num_heads=8, head_dim=16, n_groups=2, state_size=16),
    "mamba2-one-group-biases-limits-tied-padded": Mamba2Config(
        **(WITHOUT_ATTENTION | {"hidden_size": 42}),
        num_heads=6,
        head_dim=14,
        n_groups=1,
        state_size=20,
        conv_kernel=2,
        use_bias=True,
        use_conv_bias=False,
        time_step_limit=(0.3, 1.2),
        residual_in_fp32=False,
        tie_word_embeddings=True,
    ),
    "nemotron_h": NemotronHConfig(
        **WITHOUT_LAYERS, **ROUTED, **MIXER, head_dim=16, layers_block_type=[MAMBA, "moe", FULL, "mlp"]
    ),
    "nemotron_h-latents-groups-biases-limits-mqa-padded": NemotronHConfig(
        **_ODD_WITHOUT_LAYERS,
        **(ROUTED | {"moe_intermediate_size": 37, "moe_shared_expert_intermediate_size": 41}),
        moe_latent_size=26,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=2.5,
        mamba_num_heads=6,
        mamba_head_dim=14,
        n_groups=3,
        ssm_state_size=20,
        conv_kernel=3,
        head_dim=22,
        use_bias=True,
        use_conv_bias=False,
        mlp_bias=True,
        time_step_limit=(0.0, 1.2),
        mlp_hidden_act="gelu",
        layers_block_type=["mlp", FULL, MAMBA, "moe"],
    ),
    "nemotron_h-dense-small-steps": NemotronHConfig(
        **WITHOUT_LAYERS,
        **MIXER,
        head_dim=24,
        time_step_min=0.5,
        time_step_max=1.0,
        layers_block_type=[FULL, "mlp", MAMBA],
    ),
}
