"""Granite 4 without state-space layers: a dense block, to which there may be experts."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.models.causal_lm import CausalLM
from engine_core.models.granite import granite_fields
from engine_core.models.granitemoe import GraniteMoeLayer, granite_moe_config
from engine_core.models.model_config import ArchitectureConfig, layer_types, positive


class GraniteMoeHybridForCausalLM(CausalLM):
    """Rotation is optional."""

    model_type = "granitemoehybrid"
    layer_class = GraniteMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, size = granite_fields(config), positive(config, "shared_intermediate_size")
        if others := sorted(set(layer_types(config, fields["num_layers"])) - {"full_attention"}):
            raise UnsupportedModelError(
                f"layer_types: {', '.join(others)} is not supported: expected full_attention for all layers, as "
                "state-space layers are not served"
            )
        if config.position_embedding_type != "rope":
            fields["ropes"] = (None,) * fields["num_layers"]
        if config.num_local_experts:
            return granite_moe_config(config, fields, size)
        return ArchitectureConfig(**fields | {"intermediate_size": size, "gate_up_names": ("input_linear",)})
