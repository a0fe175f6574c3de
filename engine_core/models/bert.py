"""BERT (https://arxiv.org/abs/1810.04805): learned positions, types of tokens, and norms after the residuals.

Sentence-transformers' MiniLM, BGE, E5 and GTE have this format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.classifiers import DenseClassifier
from engine_core.models.encoder_model import EncoderConfig, EncoderModel, encoder_fields
from engine_core.models.model_config import positive
from engine_core.pooling.pooler import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(EncoderConfig):
    """The options of the embedding."""

    type_vocab_size: int
    padding_id: int | None = None
    """Positions begin behind it; tokens of that id count for none, and all have its own. None: they begin at 0."""

    @property
    def table_positions(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings + (0 if self.padding_id is None else self.padding_id + 1)


def types_of_tokens(input_ids: torch.Tensor, token_types: torch.Tensor | None, count: int) -> torch.Tensor:
    """[T] int64: ``token_types``, if they are given and there are types to tell apart, else all 0."""
    return torch.zeros_like(input_ids) if token_types is None or count == 1 else token_types


class BertLayer:
    """Attention, then a feed-forward block, with a norm after each sum with the residual."""

    def __init__(self, config: BertConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        names = "self.query", "self.key", "self.value"
        attention = f"{prefix}.attention"
        self.attention = SelfAttention(config, index, attention, parts, qkv_names=names, o_name="output.dense")
        self.attention_norm = parts.layer_norm(f"{attention}.output.LayerNorm", hidden, config.norm_eps)
        self.intermediate = parts.linear(f"{prefix}.intermediate.dense", hidden, inner, bias=True)
        self.output = parts.linear(f"{prefix}.output.dense", inner, hidden, bias=True)
        self.output_norm = parts.layer_norm(f"{prefix}.output.LayerNorm", hidden, config.norm_eps)
        self._activation = config.activation
        self._activate = parts.backend.activate

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.attention_norm(self.attention(hidden, context, residual=hidden))
        inner = self._activate(self.intermediate(hidden), self._activation)
        return self.output_norm(self.output(inner, hidden))


class BertModel(EncoderModel):
    """The position table limits positions."""

    model_type = "bert"
    prefix = "bert"
    layers_name = "encoder.layer"
    layer_class = BertLayer
    own_modules = ("embeddings", "encoder", "pooler")
    unused = ("bert.pooler.", "cls.")
    config: BertConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        if (kind := raw.get("position_embedding_type", "absolute")) != "absolute":
            raise UnsupportedModelError(
                f"position_embedding_type={kind!r} is not supported: expected 'absolute', a table of positions"
            )
        for field in ("is_decoder", "add_cross_attention"):
            if raw.get(field):
                raise UnsupportedModelError(f"{field}=true is not supported: expected an encoder by itself")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> BertConfig:
        fields = encoder_fields(config) | {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
        return BertConfig(**fields, type_vocab_size=positive(config, "type_vocab_size"))

    def make_embedding(self, parts: PartFactory) -> None:
        config, prefix = self.config, f"{self.prefix}.embeddings"
        hidden = config.hidden_size

        def table(name: str, rows: int) -> Any:
            of_tokens = name == "word_embeddings"
            return parts.vocab_parallel_embedding(f"{prefix}.{name}", rows, hidden, of_tokens=of_tokens)

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.position_embeddings = table("position_embeddings", config.table_positions)
        self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
        self.embedding_norm = parts.layer_norm(f"{prefix}.LayerNorm", hidden, config.norm_eps)

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        types = types_of_tokens(input_ids, token_types, self.config.type_vocab_size)
        hidden = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        return self.embedding_norm(hidden + self.position_embeddings(self.table_rows(input_ids, positions)))

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """Transformers' ``classifier``; that of whole inputs is behind its pooler."""
        hidden = self.config.hidden_size
        if per_token:
            return parts.float32_linear("classifier", hidden, num_labels, bias=True)
        dense = parts.float32_linear(f"{self.prefix}.pooler.dense", hidden, hidden, bias=True)
        output = parts.float32_linear("classifier", hidden, num_labels, bias=True)
        return DenseClassifier(parts, dense, "Tanh", output)

    def table_rows(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T] int64: the rows of the table of positions for ``input_ids`` at ``positions``."""
        return positions

    @classmethod
    def renamed(cls, name: str) -> str:
        """TensorFlow's names of a norm's weights are those of older checkpoints."""
        name = super().renamed(name)
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
        return name
