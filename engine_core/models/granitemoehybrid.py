"""Granite 4: Mamba-2 in most layers and attention in the others, or attention in all; then a dense block, to which
there may be experts.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.granite import granite_fields
from engine_core.models.granitemoe import GraniteMoeFeedForward, granite_mixture
from engine_core.models.mamba2_mixer import Mamba2Mixer, MambaConfig, MambaNames, read_mamba, read_step_limits
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
    def read_config(cls, config: PretrainedConfig) -> MambaConfig:
        fields, size = granite_fields(config), positive(config, "shared_intermediate_size")
        kinds = layer_types(config, fields["num_layers"])
        if others := sorted(set(kinds) - {*_KINDS}):
            raise UnsupportedModelError(
                f"layer_types: {', '.join(others)} is not supported: expected {' or '.join(_KINDS)}"
            )
        has_mixer = tuple(kind == "linear_attention" for kind in kinds)
        if any(has_mixer):
            _check_expansion(config)
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


def _check_expansion(config: PretrainedConfig) -> None:
    """Raise ``CheckpointError`` if ``mamba_expand`` is not what the heads make of the hidden size."""
    expand, heads, head_dim = (positive(config, name) for name in ("mamba_expand", "mamba_n_heads", "mamba_d_head"))
    if heads * head_dim != (inner := expand * config.hidden_size):
        raise CheckpointError(
            f"mamba_n_heads={heads} with mamba_d_head={head_dim} is not usable: expected {inner} in all, which is "
            f"mamba_expand={expand} × hidden_size={config.hidden_size}"
        )
