"""OLMo 3: OLMo 2's layers, most with a sliding window; only those without one have their context extended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers
from engine_core.models.olmo2 import Olmo2Layer


class Olmo3ForCausalLM(CausalLM):
    """``rope_parameters`` has an entry per layer type."""

    model_type = "olmo3"
    layer_class = Olmo2Layer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        given, scaling = raw.get("rope_parameters"), raw.get("rope_scaling")
        if isinstance(given, dict) and given and not given.keys() & {"full_attention", "sliding_attention"}:
            raise CheckpointError(
                f"rope_parameters has {', '.join(sorted(given))}: expected full_attention and sliding_attention"
            )
        if isinstance(scaling, dict) and "rope_type" not in scaling:
            raise CheckpointError("rope_scaling has no rope_type")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased)
