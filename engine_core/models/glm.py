"""GLM-4 in its first format: Llama's layers with a fused feed-forward projection, and partial rotation of neighbouring
elements as pairs.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


class GlmForCausalLM(CausalLM):
    """Optional biases on the QKV projections only."""

    model_type = "glm"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(
            **common_fields(config, partial_rotary=True, interleaved=True),
            qkv_bias=config.attention_bias,
            gate_up_names=("gate_up_proj",),
        )
