"""Gemma in its first version: Llama's layers with scaled embeddings."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


class GemmaForCausalLM(CausalLM):
    """Biases of attention are optional."""

    model_type = "gemma"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        if config.use_bidirectional_attention:
            raise UnsupportedModelError(
                "use_bidirectional_attention=True is not supported: no token may attend to later ones"
            )
        fields, biased = common_fields(config), config.attention_bias
        return ArchitectureConfig(
            **fields,
            embedding_scale=fields["hidden_size"] ** 0.5,
            norm_offset=1.0,  # checkpoints hold norm weights minus 1
            qkv_bias=biased,
            o_bias=biased,
        )
