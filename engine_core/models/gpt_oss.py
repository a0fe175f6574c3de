"""gpt-oss: attention with sinks, every other layer a window; experts with biases and a limited SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.fused_moe import InterleavedExperts, RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward
from engine_core.models.mixtral import MixtralConfig, MixtralForCausalLM
from engine_core.models.mixture import Mixture, read_experts
from engine_core.models.model_config import common_fields, positive_number, windows_of_layers
from engine_core.ops.activation import Activation
from engine_core.ops.base import Routing
from engine_core.quantization.mxfp4 import SCALED_TOGETHER, Mxfp4Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(MixtralConfig):
    """Mixtral's."""

    is_mxfp4: bool
    """Whether the checkpoint keeps experts in MXFP4."""


class GptOssForCausalLM(MixtralForCausalLM):
    """The weights of a row's experts are the softmax of their logits alone."""

    model_type = "gpt_oss"
    expanded_quantizations = ("mxfp4",)
    config: GptOssConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GptOssConfig:
        if config.hidden_act != "silu":
            raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not supported: expected silu")
        fields, biased = common_fields(config), config.attention_bias
        experts = replace(
            read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size"),
            activation=Activation.CLAMPED_SWIGLU,
            bias=True,
            swiglu_limit=positive_number(config, "swiglu_limit"),
            swiglu_alpha=positive_number(config, "swiglu_alpha"),
        )
        is_mxfp4 = bool(getattr(config, "quantization_config", None))
        if is_mxfp4:
            for name, size in (("hidden_size", experts.hidden_size), ("intermediate_size", experts.intermediate_size)):
                if size % SCALED_TOGETHER:
                    raise CheckpointError(
                        f"{name}={size} is not usable: expected a multiple of {SCALED_TOGETHER} with MXFP4"
                    )
        count = fields["num_layers"]
        return GptOssConfig(
            **fields | {"sliding_windows": windows_of_layers(config, count)},
            attention_sinks=True,
            qkv_bias=biased,
            o_bias=biased,
            mixture=Mixture(experts, Routing(experts.top_k, renormalize=True), (True,) * count),
            is_mxfp4=is_mxfp4,
        )

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        mixture, prefix = self.config.mixture, f"{prefix}.mlp"
        router = RouterTensors(f"{prefix}.router", bias=True)
        prefix = f"{prefix}.experts"
        experts = Mxfp4Experts(prefix, layers.dtype) if self.config.is_mxfp4 else InterleavedExperts(prefix)
        return layers.fused_moe(mixture.shape, mixture.routing, router, experts)
