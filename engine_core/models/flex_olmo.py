"""FlexOlmo: OLMo 2's layers with experts in all of them."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.layers.fused_moe import FusedMoE
from engine_core.layers.part_factory import PartFactory
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig
from engine_core.models.olmo2 import Olmo2Layer
from engine_core.models.olmoe import olmoe_config, olmoe_experts


class FlexOlmoLayer(Olmo2Layer):
    """Experts instead of a dense block."""

    def make_mlp(self, config: ArchitectureConfig, prefix: str, parts: PartFactory) -> FusedMoE:
        return olmoe_experts(config, prefix, parts)


class FlexOlmoForCausalLM(CausalLM):
    """The configuration is OLMoE's."""

    model_type = "flex_olmo"
    layer_class = FlexOlmoLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return olmoe_config(config)
