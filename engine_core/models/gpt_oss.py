"""gpt-oss: attention with sinks, every other layer a window; experts with biases and a limited SwiGLU."""

from __future__ import annotations

from dataclasses import replace

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.layers.activation import Activation
from engine_core.layers.base import Routing
from engine_core.layers.factory import LayerFactory
from engine_core.layers.fused_moe import InterleavedExperts, RouterTensors
from engine_core.models.architecture import common_fields, positive_number, windows_of_layers
from engine_core.models.decoder import FeedForward
from engine_core.models.mixtral import MixtralConfig, MixtralForCausalLM
from engine_core.models.mixture import Mixture, read_experts


class GptOssForCausalLM(MixtralForCausalLM):
    """The weights of a row's experts are the softmax of their logits alone."""

    model_type = "gpt_oss"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MixtralConfig:
        if config.hidden_act != "silu":
            raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not supported; known is silu")
        fields, biased = common_fields(config), config.attention_bias
        experts = replace(
            read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size"),
            activation=Activation.CLAMPED_SWIGLU,
            bias=True,
            swiglu_limit=positive_number(config, "swiglu_limit"),
            swiglu_alpha=positive_number(config, "swiglu_alpha"),
        )
        count = fields["num_layers"]
        return MixtralConfig(
            **fields | {"sliding_windows": windows_of_layers(config, count)},
            attention_sinks=True,
            qkv_bias=biased,
            o_bias=biased,
            mixture=Mixture(experts, Routing(experts.top_k, renormalize=True), (True,) * count),
        )

    def make_mlp(self, index: int, prefix: str, layers: LayerFactory) -> FeedForward:
        mixture, prefix = self.config.mixture, f"{prefix}.mlp"
        router = RouterTensors(f"{prefix}.router", bias=True)
        return layers.fused_moe(mixture.shape, mixture.routing, router, InterleavedExperts(f"{prefix}.experts"))
