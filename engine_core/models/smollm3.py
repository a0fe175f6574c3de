"""SmolLM3: Llama's layers, some without rotation (NoPE, https://arxiv.org/abs/2305.19466), and some perhaps with a
sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.smollm3.configuration_smollm3 import SmolLM3Config

from engine_core.errors import CheckpointError
from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers


class SmolLM3ForCausalLM(CausalLM):
    """``no_rope_layers`` has a 1 for layers that rotate; by default, one per ``no_rope_layer_interval`` does not."""

    model_type = "smollm3"
    layer_class = LlamaLayer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        rotating = raw.get("no_rope_layers")
        count = raw.get("num_hidden_layers", SmolLM3Config.num_hidden_layers)
        interval = raw.get("no_rope_layer_interval", SmolLM3Config.no_rope_layer_interval)
        if rotating is None and isinstance(interval, int) and interval < 1:
            raise CheckpointError(f"no_rope_layer_interval={interval} is not usable: expected a positive whole number")
        if isinstance(rotating, list) and (len(rotating) != count or any(entry not in (0, 1) for entry in rotating)):
            raise CheckpointError(
                f"no_rope_layers={rotating!r} is not usable: expected a 0 or 1 for each of {count} layers "
                "(num_hidden_layers)"
            )

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        rotates = zip(fields["ropes"], config.no_rope_layers, strict=True)
        ropes = tuple(rope if rotating else None for rope, rotating in rotates)
        return ArchitectureConfig(**fields | {"ropes": ropes}, qkv_bias=biased, o_bias=biased, mlp_bias=config.mlp_bias)
