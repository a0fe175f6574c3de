"""Qwen3-MoE: Qwen3's attention, and experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields, sliding_window
from engine_core.models.qwen2_moe import QwenMoeLayer, qwen_mixture
from engine_core.weights.expert_tensors import StackedParameters, TransposedExperts

TRANSPOSED_EXPERTS = "transposed_experts"
"""Field of the configuration: Qwen3-VL-MoE stores all experts of a layer together, transposed."""


class Qwen3MoeForCausalLM(CausalLM):
    """No expert is shared; a window, if any, applies to every layer."""

    model_type = "qwen3_moe"
    layer_class = QwenMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config), config.attention_bias
        mixture = qwen_mixture(config, fields, shared_size=None)
        if getattr(config, TRANSPOSED_EXPERTS, False):
            # transformers transposes them back
            mixture = replace(mixture, tensors=partial(TransposedExperts, parameters=StackedParameters()))
        return ArchitectureConfig(
            **fields | {"sliding_windows": (sliding_window(config),) * fields["num_layers"]},
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
            mixture=mixture,
        )
