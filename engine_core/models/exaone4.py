"""EXAONE 4: OLMo 2's order of blocks and norms, with queries and keys normalized per head; where some layers have a
sliding window, the others do not rotate.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers
from engine_core.models.olmo2 import Olmo2Layer


class Exaone4Layer(Olmo2Layer):
    """Norms of single heads."""

    attention_class = SelfAttention


class Exaone4ForCausalLM(CausalLM):
    """No biases."""

    model_type = "exaone4"
    layer_class = Exaone4Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**exaone4_fields(config))


def exaone4_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields that EXAONE 4 shares with K-EXAONE. Raises ``CheckpointError``."""
    fields = common_fields(config, windows=windows_of_layers)
    if config.sliding_window is not None:
        layers = zip(fields["ropes"], fields["sliding_windows"], strict=True)
        fields["ropes"] = tuple(None if window is None else rope for rope, window in layers)
    return fields | {"qk_norm": True}
