"""Qwen3-MoE: Qwen3's attention, and experts."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.mixtral import MixtralConfig
from engine_core.models.mixture import Mixture
from engine_core.models.model_config import common_fields, sliding_window
from engine_core.models.qwen2_moe import Qwen2MoeForCausalLM, qwen_experts, sparse_layers
from engine_core.ops.base import Routing


class Qwen3MoeForCausalLM(Qwen2MoeForCausalLM):
    """No expert is shared; a window, where there is one, applies to every layer."""

    model_type = "qwen3_moe"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MixtralConfig:
        fields, biased = common_fields(config), config.attention_bias
        experts, count = qwen_experts(config, fields), fields["num_layers"]
        routing = Routing(experts.top_k, renormalize=bool(config.norm_topk_prob))
        return MixtralConfig(
            **fields | {"sliding_windows": (sliding_window(config),) * count},
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
            mixture=Mixture(experts, routing, sparse_layers(config, count)),
        )
