"""Phi-3, Phi-3.5 and Phi-4: Llama's layers with fused projections, LongRoPE and partial rotation."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, uniform_windows


class Phi3ForCausalLM(CausalLM):
    """No biases. A window, if any, applies to every layer."""

    model_type = "phi3"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(
            **common_fields(config, partial_rotary=True, windows=uniform_windows),
            qkv_names=("qkv_proj",),
            gate_up_names=("gate_up_proj",),
        )
