"""K-EXAONE: EXAONE 4's attention with norms before the blocks; DeepSeek V3's experts in some layers."""

from __future__ import annotations

import re

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import MoeNames, grouped_routing
from engine_core.models.exaone4 import exaone4_fields
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import ArchitectureConfig, Mixture, positive, read_experts, sparse_layers
from engine_core.ops.base import Scoring


class ExaoneMoeLayer(Glm4MoeLayer):
    """The correction of the choice lies beside the router."""

    names = MoeNames(correction_bias="e_score_correction_bias")


class ExaoneMoeForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped."""

    model_type = "exaone_moe"
    layer_class = ExaoneMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = exaone4_fields(config)
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
        routing = grouped_routing(config, experts, 2, scoring=Scoring.SIGMOID, renormalize=bool(config.norm_topk_prob))
        shared = experts.intermediate_size * positive(config, "num_shared_experts")
        is_sparse = sparse_layers(config, fields["num_layers"])
        return ArchitectureConfig(**fields, mixture=Mixture(experts, routing, is_sparse, shared, correction_bias=True))

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or re.match(r"mtp\.", name) is not None
