"""DeepSeek V3 and R1: latent attention; experts after some dense layers, chosen by sigmoids and groups, one shared."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.layers.fused_moe import RouterTensors, SeparateExperts
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward, GatedMLP, TransformerLayer, pre_norms
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.latent import LatentAttention, LatentConfig, latent_fields
from engine_core.models.mixture import (
    Mixture,
    SharedExperts,
    biased_sigmoid_routing,
    check_only,
    read_experts,
    shared_size,
    sparse_from,
)
from engine_core.models.model_config import ArchitectureConfig

DEEPSEEK_ONLY = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
"""The only values of these fields that DeepSeek V3 and the models after it have."""


def deepseek_mixture(
    config: PretrainedConfig, fields: dict[str, Any], is_sparse: tuple[bool, ...] | None = None
) -> Mixture:
    """The experts of models in DeepSeek V3's line: layers from ``first_k_dense_replace`` on have them, unless
    ``is_sparse`` is given. Raises ``CheckpointError``.
    """
    experts = read_experts(config, fields, num_experts="n_routed_experts", intermediate_size="moe_intermediate_size")
    return Mixture(
        experts,
        biased_sigmoid_routing(config, experts),
        sparse_from(config, fields["num_layers"]) if is_sparse is None else is_sparse,
        shared_size(config, experts),
    )


def deepseek_mlp(
    config: ArchitectureConfig,
    mixture: Mixture,
    index: int,
    prefix: str,
    layers: PartFactory,
    *,
    correction_bias: bool = True,
) -> FeedForward:
    """The feed-forward block of layer ``index``: dense, or experts and a shared one."""
    prefix = f"{prefix}.mlp"
    if not mixture.is_sparse[index]:
        return GatedMLP(config, prefix, layers)
    bias = f"{prefix}.gate.e_score_correction_bias" if correction_bias else None
    router = RouterTensors(f"{prefix}.gate", correction_bias=bias)
    routed = layers.fused_moe(mixture.shape, mixture.routing, router, SeparateExperts(f"{prefix}.experts"))
    if mixture.shared_size is None:
        return routed
    shared = GatedMLP(config, f"{prefix}.shared_experts", layers, intermediate_size=mixture.shared_size)
    return SharedExperts(routed, shared, layers, config)


def is_unused(name: str, mixture: Mixture) -> bool:
    """Whether a tensor belongs to layers after the last, which predict further tokens (MTP) and are not run, or is an
    empty tensor of shared experts that the model does not have.
    """
    found = re.match(r"model\.layers\.(\d+)\.(mlp\.shared_experts\.)?", name)
    if found is None:
        return False
    return int(found[1]) >= len(mixture.is_sparse) or (mixture.shared_size is None and found[2] is not None)


class DeepseekV3ForCausalLM(CausalLM):
    """Layers that predict further tokens are skipped."""

    model_type = "deepseek_v3"
    config: LatentConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LatentConfig:
        if config.head_dim != config.qk_rope_head_dim:  # transformers makes it equal where it is not given
            raise UnsupportedModelError(
                f"head_dim={config.head_dim!r} is not supported: expected qk_rope_head_dim={config.qk_rope_head_dim!r}"
            )
        fields = latent_fields(config, interleaved=bool(config.rope_interleave))
        return LatentConfig(**fields, mixture=deepseek_mixture(config, fields))

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        attention = LatentAttention(self.config, f"{prefix}.self_attn", layers)
        mlp = self.make_mlp(index, prefix, layers)
        return TransformerLayer(attention, mlp, pre_norms(prefix, self.config, layers), layers)

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        """The feed-forward block of layer ``index``."""
        return deepseek_mlp(self.config, self.config.mixture, index, prefix, layers)

    def layer_kind(self, index: int) -> Hashable:
        return super().layer_kind(index), self.config.mixture.is_sparse[index]

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config.mixture)
