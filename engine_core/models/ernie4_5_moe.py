"""ERNIE 4.5 with experts: ERNIE's attention; experts in some layers, with shared ones, chosen by corrected softmax."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import MoeNames
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    positive,
    positive_number,
    read_experts,
    whole_number,
)
from engine_core.ops.base import Routing

_LEAST_SUM = 1e-12
"""The least sum of experts' weights that is divided by; of k > 0 shares of a softmax over at most 4,096 experts, one
below it means nothing.
"""


class Ernie4_5MoeLayer(Glm4MoeLayer):
    """The correction of the choice is a row among the experts' statistics."""

    names = MoeNames(correction_bias="moe_statics.e_score_correction_bias", correction_is_row=True)


class Ernie4_5MoeForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped."""

    model_type = "ernie4_5_moe"
    layer_class = Ernie4_5MoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        if config.use_bias:
            raise UnsupportedModelError("use_bias=True is not supported: expected false, as the head has no bias")
        if (least := positive_number(config, "moe_norm_min")) > _LEAST_SUM:
            raise UnsupportedModelError(f"moe_norm_min={least} is not supported: expected at most {_LEAST_SUM}")
        fields = common_fields(config, interleaved=True)
        return ArchitectureConfig(**fields, mixture=_mixture(config, fields))

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or name.startswith("model.mtp_")


def _mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture:
    """Experts in every ``moe_layer_interval``th layer from one to another. Raises ``CheckpointError``."""
    experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
    first, last = whole_number(config, "moe_layer_start_index"), whole_number(config, "moe_layer_end_index")
    step = positive(config, "moe_layer_interval")
    is_sparse = tuple((layer + 1) % step == 0 and first <= layer <= last for layer in range(fields["num_layers"]))
    shared = experts.intermediate_size * whole_number(config, "moe_num_shared_experts") or None
    routing = Routing(experts.top_k, renormalize=True)
    return Mixture(experts, routing, is_sparse, shared, correction_bias=True)
