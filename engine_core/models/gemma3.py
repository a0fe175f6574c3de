"""Gemma 3's text model: Gemma 2's layers with QK norms, and other rotations in layers with windows. EmbeddingGemma
(https://arxiv.org/abs/2509.20354) is the same as an encoder.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.causal_lm import CausalLM
from engine_core.models.encoder_model import EncoderConfig, EncoderModel
from engine_core.models.gemma2 import Gemma2Layer, gemma_fields, require_causal
from engine_core.models.model_config import ArchitectureConfig
from engine_core.pooling.config import PoolingType


class Gemma3ForCausalLM(CausalLM):
    """``rope_parameters`` has an entry per layer type."""

    model_type = "gemma3_text"
    layer_class = Gemma2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        require_causal(config)
        return ArchitectureConfig(**gemma_fields(config), qk_norm=True)


class Gemma3Encoder(EncoderModel):
    """With ``use_bidirectional_attention``. transformers makes half of ``sliding_window`` of it, and its own token."""

    model_type = "gemma3_text"
    layer_class = Gemma2Layer
    default_pooling = PoolingType.MEAN
    own_modules = ("embed_tokens", "layers", "norm")
    unused = ("lm_head.",)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> EncoderConfig:
        fields = gemma_fields(config)
        both_ways = frozenset(range(fields["num_layers"]))
        return EncoderConfig(**fields | {"both_ways": both_ways, "tie_word_embeddings": False}, qk_norm=True)

    def make_embedding(self, parts: PartFactory) -> None:
        config = self.config
        self.embed_tokens = parts.vocab_parallel_embedding(
            f"{self.prefix}.embed_tokens", config.vocab_size, config.hidden_size, scale=config.embedding_scale
        )

    def make_norm(self, parts: PartFactory) -> RMSNorm:
        config = self.config
        return parts.rms_norm(f"{self.prefix}.norm", config.hidden_size, config.norm_eps, config.norm_offset)

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.embed_tokens(input_ids)
