"""Families that only transformers has: through the fallback."""

from __future__ import annotations

from typing import Any

from transformers import (
    AfmoeConfig,
    ApertusConfig,
    ArceeConfig,
    AXK1Config,
    BioGptConfig,
    Cohere2Config,
    Cohere2MoeConfig,
    CohereConfig,
    FlintConfig,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    GraniteSWAConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HunYuanMoEV1Config,
    Kolibri1Config,
    LagunaConfig,
    MiMoV2FlashConfig,
    MiniCPM3Config,
    NemotronConfig,
    OlmoConfig,
    PersimmonConfig,
    PhiConfig,
    PhimoeConfig,
    PretrainedConfig,
    StableLmConfig,
    Starcoder2Config,
)

from tests.engine_core.models.tiny_models import SIZES

_NO_GROUPS: dict[str, Any] = SIZES | {"num_key_value_heads": 4}
_ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0}
_FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}

SHAPES: dict[str, PretrainedConfig] = {
    "afmoe-windows": AfmoeConfig(
        **(SIZES | {"num_hidden_layers": 4}), **_FEW, head_dim=16, num_experts=32, num_dense_layers=1, sliding_window=37
    ),
    "apertus": ApertusConfig(**SIZES),
    "arcee": ArceeConfig(**SIZES),
    "axk1": AXK1Config(**_NO_GROUPS, **_FEW, **_LATENT, n_routed_experts=32, n_group=4, topk_group=2),
    "biogpt": BioGptConfig(**_NO_GROUPS, tie_word_embeddings=False),
    "cohere": CohereConfig(**SIZES),
    "cohere2_moe-windows": Cohere2MoeConfig(
        **(SIZES | {"num_hidden_layers": 4}), num_experts=32, num_experts_per_tok=2, sliding_window=37, logit_scale=0.5
    ),
    "cohere2-windows": Cohere2Config(**(SIZES | {"num_hidden_layers": 4}), sliding_window=37, logit_scale=0.5),
    "flint": FlintConfig(**SIZES, **_FEW, num_experts=32),
    "gpt_bigcode": GPTBigCodeConfig(**SIZES, n_inner=112),
    "gpt_neox-partial-rotary": GPTNeoXConfig(**_NO_GROUPS),
    "granite_swa": GraniteSWAConfig(**(SIZES | {"num_hidden_layers": 4}), sliding_window=37, attention_multiplier=0.25),
    "helium": HeliumConfig(**SIZES, head_dim=16),
    "hunyuan_v1_dense": HunYuanDenseV1Config(**SIZES, head_dim=16, rope_parameters=dict(_ALPHA)),
    "hunyuan_v1_moe": HunYuanMoEV1Config(
        **SIZES, num_experts=32, moe_topk=2, head_dim=16, rope_parameters=dict(_ALPHA)
    ),
    "kolibri1": Kolibri1Config(**SIZES, **_FEW, head_dim=16, num_experts=32),
    "laguna-windows": LagunaConfig(
        **SIZES, **_FEW, head_dim=16, num_experts=32, sliding_window=37, gating="per-element"
    ),
    "mimo_v2_flash": MiMoV2FlashConfig(**SIZES, **_FEW, head_dim=24, v_head_dim=16, n_routed_experts=32),
    "minicpm3": MiniCPM3Config(**_NO_GROUPS, **_LATENT, scale_emb=3),
    "nemotron-tied": NemotronConfig(**SIZES, tie_word_embeddings=True),
    "olmo": OlmoConfig(**SIZES),
    "persimmon": PersimmonConfig(**_NO_GROUPS),
    "phi-padded": PhiConfig(
        **(SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 107}),
        partial_rotary_factor=0.5,
    ),
    "phimoe-padded": PhimoeConfig(
        **(SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 37}),
        num_local_experts=32,
        attention_bias=True,
        lm_head_bias=True,
    ),
    "stablelm": StableLmConfig(**SIZES, use_qkv_bias=True),
    "stablelm-head-norms-parallel": StableLmConfig(**SIZES, qk_layernorm=True, use_parallel_residual=True),
    "starcoder2-window": Starcoder2Config(**SIZES, sliding_window=37),
}
