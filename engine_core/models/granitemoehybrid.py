"""Granite 4: Mamba-2 in most layers and attention in the others, or attention in all; then a dense block, to which
there may be experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.granite import granite_fields
from engine_core.models.granitemoe import GraniteMoeFeedForward, granite_mixture
from engine_core.models.mamba2_mixer import (
    LEGACY_KINDS,
    Mamba2Mixer,
    MambaConfig,
    MambaNames,
    check_inner_size,
    read_mamba,
    read_step_limits,
)
from engine_core.models.model_config import layer_types, positive

_NAMES = MambaNames(
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_proj_bias",
    "mamba_conv_bias",
)
_EXPAND = "mamba_expand"
_KINDS = ("full_attention", "linear_attention")


class GraniteMoeHybridLayer:
    """A mixer or attention, then Granite's feed-forward block, each with a norm before it and a scaled residual."""

    def __init__(self, config: MambaConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        if config.has_mixer[index]:
            assert config.mamba is not None
            self.mixer: Mamba2Mixer | SelfAttention = Mamba2Mixer(
                config.mamba, hidden, f"{prefix}.mamba", parts, eps=eps, residual_scale=config.residual_scale
            )
        else:
            self.mixer = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.feed_forward = GraniteMoeFeedForward(config, prefix, parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.mixer(self.input_layernorm(hidden), context, residual=hidden)
        return self.feed_forward(self.post_attention_layernorm(hidden), residual=hidden)


class GraniteMoeHybridForCausalLM(CausalLM):
    """Rotation is optional."""

    model_type = "granitemoehybrid"
    layer_class = GraniteMoeHybridLayer
    config: MambaConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_inner_size(raw, _NAMES, _EXPAND)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MambaConfig:
        fields, size = granite_fields(config), positive(config, "shared_intermediate_size")
        kinds = [LEGACY_KINDS.get(kind, kind) for kind in layer_types(config, fields["num_layers"])]
        if others := sorted(set(kinds) - {*_KINDS}):
            raise UnsupportedModelError(
                f"layer_types: {', '.join(others)} is not supported: expected {' or '.join(_KINDS)}"
            )
        has_mixer = tuple(kind == "linear_attention" for kind in kinds)
        if any(has_mixer):
            check_inner_size(config.to_dict(), _NAMES, _EXPAND)
        # Only attention rotates.
        rotates = config.position_embedding_type == "rope"
        ropes = (
            rope if rotates and not mixes else None for rope, mixes in zip(fields["ropes"], has_mixer, strict=True)
        )
        experts = bool(config.num_local_experts)
        return MambaConfig(
            **fields | {"ropes": tuple(ropes), "intermediate_size": fields["intermediate_size"] if experts else size},
            gate_up_names=("input_linear",),
            mixture=granite_mixture(config, fields, size) if experts else None,
            mamba=read_mamba(config, _NAMES, read_step_limits(config)) if any(has_mixer) else None,
            mamba_names=_NAMES,
            has_mixer=has_mixer,
            attends=tuple(not mixes for mixes in has_mixer),
        )
