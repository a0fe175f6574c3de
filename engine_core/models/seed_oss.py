"""Seed-OSS: Llama's layers, with biases of queries, keys and values."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


class SeedOssForCausalLM(CausalLM):
    """The other biases are optional."""

    model_type = "seed_oss"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(
            **common_fields(config),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_out_bias,
            mlp_bias=config.mlp_bias,
        )
