"""Mixtral: Mistral's layers with experts in all of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from transformers import PretrainedConfig

from engine_core.layers.fused_moe import RouterTensors, SeparateExperts
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward
from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.mixture import Mixture, read_experts
from engine_core.models.model_config import common_fields, sliding_window
from engine_core.ops.base import Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(LlamaConfig):
    """Llama's, with experts."""

    mixture: Mixture


class MixtralForCausalLM(LlamaForCausalLM):
    """The weights of a row's experts sum to 1."""

    model_type = "mixtral"
    config: MixtralConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MixtralConfig:
        fields = common_fields(config)
        count = fields["num_layers"]
        experts = read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size")
        mixture = Mixture(experts, Routing(experts.top_k, renormalize=True), (True,) * count)
        return MixtralConfig(**fields | {"sliding_windows": (sliding_window(config),) * count}, mixture=mixture)

    def layer_kind(self, index: int) -> Hashable:
        return super().layer_kind(index), self.config.mixture.is_sparse[index]

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        mixture, prefix = self.config.mixture, f"{prefix}.block_sparse_moe"
        tensors = SeparateExperts(f"{prefix}.experts", gate="w1", up="w3", down="w2")
        return layers.fused_moe(mixture.shape, mixture.routing, RouterTensors(f"{prefix}.gate"), tensors)
