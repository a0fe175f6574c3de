"""DeepSeek V2 and V2-Lite: latent attention; experts chosen by softmax, in V2 only from a token's best groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.models.deepseek_v3 import (
    DeepseekConfig,
    DeepseekV3ForCausalLM,
    check_only,
    deepseek_fields,
    grouped_routing,
    routed_experts,
    shared_size,
    sparse_from,
)
from engine_core.models.model_config import Mixture, positive_number
from engine_core.ops.base import Routing
from engine_core.weights.experts import ExpertsShape


class DeepseekV2ForCausalLM(DeepseekV3ForCausalLM):
    """The weights of a row's experts are not renormalized."""

    model_type = "deepseek_v2"

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_V2_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> DeepseekConfig:
        fields = deepseek_fields(config, interleaved=True)
        return DeepseekConfig(**fields, mixture=read_mixture(config, fields))


DEEPSEEK_V2_ONLY = {"scoring_func": "softmax", "moe_layer_freq": 1}
"""The only values of these fields in DeepSeek V2."""


def read_mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture:
    """The experts. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    experts = routed_experts(config, fields)
    is_sparse = sparse_from(config, fields["num_layers"])
    return Mixture(experts, _routing(config, experts), is_sparse, shared_size(config, experts))


def _routing(config: PretrainedConfig, experts: ExpertsShape) -> Routing:
    if config.norm_topk_prob:
        raise UnsupportedModelError(
            "norm_topk_prob=True is not supported: expected false, as deepseek_v2 does not renormalize expert weights"
        )
    if config.mlp_bias:
        raise UnsupportedModelError("mlp_bias=True is not supported: experts of deepseek_v2 have no biases")
    match config.topk_method:
        case "greedy":
            return Routing(experts.top_k, scale=positive_number(config, "routed_scaling_factor"))
        case "group_limited_greedy":
            return grouped_routing(config, experts, 1)
    raise UnsupportedModelError(
        f"topk_method {config.topk_method!r} is not supported: expected greedy or group_limited_greedy"
    )
