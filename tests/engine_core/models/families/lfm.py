"""LFM2 and LFM3: short convolutions in most layers."""

from __future__ import annotations

from typing import Any

from transformers import Lfm2Config, Lfm2MoeConfig, Lfm3Config, PretrainedConfig

from tests.engine_core.models.families.experts import EXPERTS
from tests.engine_core.models.tiny_models import LLAMA3, SIZES

_CONV, _FULL, _WINDOW = "conv", "full_attention", "sliding_attention"
LFM: dict[str, Any] = SIZES | {"num_hidden_layers": 4, "layer_types": [_CONV, _CONV, _FULL, _CONV]}
ODD: dict[str, Any] = SIZES | {
    "hidden_size": 70,
    "intermediate_size": 101,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "layer_types": [_FULL, _CONV, _FULL],
    "conv_bias": True,
    "norm_eps": 1e-3,
}
"""Sizes that are not multiples of 16; attention at both ends."""
THETAS: dict[str, Any] = {
    _WINDOW: {"rope_type": "default", "rope_theta": 100.0},
    _FULL: {"rope_type": "proportional", "rope_theta": 400.0, "partial_rotary_factor": 0.5},
}

SHAPES: dict[str, PretrainedConfig] = {
    "lfm2": Lfm2Config(**LFM, block_multiple_of=16),
    "lfm2-four-taps-untied-padded": Lfm2Config(
        **ODD, conv_L_cache=4, block_auto_adjust_ff_dim=False, tie_word_embeddings=False, rope_parameters=LLAMA3
    ),
    "lfm2-older-fields": Lfm2Config(
        **LFM | {"layer_types": None}, full_attn_idxs=[1, 2], block_ff_dim=200, block_ffn_dim_multiplier=0.7
    ),
    "lfm2_moe": Lfm2MoeConfig(**LFM, **EXPERTS, num_experts=8),
    "lfm2_moe-uncorrected-untied-padded": Lfm2MoeConfig(
        **ODD | EXPERTS | {"moe_intermediate_size": 37, "num_experts_per_tok": 1},
        num_experts=3,
        num_dense_layers=0,
        conv_L_cache=2,
        use_expert_bias=False,
        norm_topk_prob=False,
        routed_scaling_factor=2.5,
        tie_word_embeddings=False,
    ),
    "lfm3": Lfm3Config(
        **LFM | {"num_hidden_layers": 5, "layer_types": [_CONV, _WINDOW, _CONV, _FULL, _CONV]},
        head_dim=32,
        sliding_window=24,
        rope_parameters=THETAS,
    ),
    "lfm3-no-gates-biases-untied-padded": Lfm3Config(
        **ODD | {"layer_types": [_FULL, _CONV, _WINDOW]},
        head_dim=18,
        conv_L_cache=3,
        sliding_window=7,
        use_sandwich_norm=False,
        use_attention_gate=False,
        attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters=THETAS | {_FULL: THETAS[_WINDOW] | {"rope_theta": 1000.0}},
    ),
}
