"""Qwen3-MoE: Qwen3's attention, and experts."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields, sliding_window
from engine_core.models.qwen2_moe import QwenMoeLayer, qwen_mixture


class Qwen3MoeForCausalLM(CausalLM):
    """No expert is shared; a window, if any, applies to every layer."""

    model_type = "qwen3_moe"
    layer_class = QwenMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config), config.attention_bias
        return ArchitectureConfig(
            **fields | {"sliding_windows": (sliding_window(config),) * fields["num_layers"]},
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
            mixture=qwen_mixture(config, fields, shared_size=None),
        )
