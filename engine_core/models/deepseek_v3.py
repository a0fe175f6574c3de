"""DeepSeek V3 and R1: latent attention; experts behind some dense layers, chosen by sigmoids and groups, one shared."""

from __future__ import annotations

import re
from typing import Any

from transformers import PretrainedConfig

from engine_core.layers.factory import LayerFactory
from engine_core.layers.fused_moe import RouterTensors, SeparateExperts
from engine_core.models.architecture import ArchitectureConfig, positive, whole_number
from engine_core.models.decoder import FeedForward, GatedMLP
from engine_core.models.mixture import Mixture, SharedExperts, biased_sigmoid_routing, read_experts


def deepseek_mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture:
    """The experts of models in DeepSeek V3's line: layers from ``first_k_dense_replace`` on have them."""
    experts = read_experts(config, fields, num_experts="n_routed_experts", intermediate_size="moe_intermediate_size")
    first = whole_number(config, "first_k_dense_replace")
    return Mixture(
        experts,
        biased_sigmoid_routing(config, experts),
        tuple(layer >= first for layer in range(fields["num_layers"])),
        experts.intermediate_size * positive(config, "n_shared_experts"),
    )


def deepseek_mlp(
    config: ArchitectureConfig,
    mixture: Mixture,
    index: int,
    prefix: str,
    layers: LayerFactory,
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
    shared = GatedMLP(config, f"{prefix}.shared_experts", layers, intermediate_size=mixture.shared_size)
    return SharedExperts(routed, shared, layers, config)


def is_of_next_token_layers(name: str, num_layers: int) -> bool:
    """Whether a tensor belongs to the layers behind the last, which predict further tokens (MTP) and are not run."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= num_layers
