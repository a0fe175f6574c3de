"""Families that only transformers has: through the fallback."""

from __future__ import annotations

from typing import Any

from transformers import (
    ApertusConfig,
    ArceeConfig,
    BioGptConfig,
    Cohere2Config,
    CohereConfig,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    GraniteSWAConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    MiniCPM3Config,
    NemotronConfig,
    OlmoConfig,
    PersimmonConfig,
    PhiConfig,
    PretrainedConfig,
    StableLmConfig,
    Starcoder2Config,
)

from tests.engine_core.models.tiny_models import SIZES

_NO_GROUPS: dict[str, Any] = SIZES | {"num_key_value_heads": 4}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}

SHAPES: dict[str, PretrainedConfig] = {
    "apertus": ApertusConfig(**SIZES),
    "arcee": ArceeConfig(**SIZES),
    "biogpt": BioGptConfig(**_NO_GROUPS, tie_word_embeddings=False),
    "cohere": CohereConfig(**SIZES),
    "cohere2-windows": Cohere2Config(**(SIZES | {"num_hidden_layers": 4}), sliding_window=37, logit_scale=0.5),
    "gpt_bigcode": GPTBigCodeConfig(**SIZES, n_inner=112),
    "gpt_neox-partial-rotary": GPTNeoXConfig(**_NO_GROUPS),
    "granite_swa": GraniteSWAConfig(**(SIZES | {"num_hidden_layers": 4}), sliding_window=37, attention_multiplier=0.25),
    "helium": HeliumConfig(**SIZES, head_dim=16),
    "hunyuan_v1_dense": HunYuanDenseV1Config(**SIZES, head_dim=16),
    "minicpm3": MiniCPM3Config(**_NO_GROUPS, **_LATENT, scale_emb=3),
    "nemotron-tied": NemotronConfig(**SIZES, tie_word_embeddings=True),
    "olmo": OlmoConfig(**SIZES),
    "persimmon": PersimmonConfig(**_NO_GROUPS),
    "phi-padded": PhiConfig(
        **(SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 107}),
        partial_rotary_factor=0.5,
    ),
    "stablelm": StableLmConfig(**SIZES, use_qkv_bias=True),
    "stablelm-head-norms-parallel": StableLmConfig(**SIZES, qk_layernorm=True, use_parallel_residual=True),
    "starcoder2-window": Starcoder2Config(**SIZES, sliding_window=37),
}
