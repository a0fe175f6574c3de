"""ModernBERT (https://arxiv.org/abs/2412.13663): rotations, gated feed-forward blocks, norms before the blocks, and
windows in most layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation, read_activation
from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.norm import LayerNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.classifiers import DenseClassifier
from engine_core.models.encoder_model import EncoderConfig, EncoderModel, encoder_fields
from engine_core.models.model_config import layer_types, positive, read_ropes
from engine_core.pooling.config import PoolingType
from engine_core.pooling.pooler import Head

_OF_CLASSIFIERS = {Activation.GELU: "GELU", Activation.RELU: "ReLU", Activation.SILU: "SiLU"}
"""The names in ``pooler.ACTIVATIONS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """The options of norms, and of the classifier."""

    norm_bias: bool
    classifier_bias: bool
    classifier_activation: Activation


class ModernBertLayer:
    """Attention, then a feed-forward block, each after a norm and with a residual; the first layer's input has been
    normalized by the embedding.
    """

    def __init__(self, config: ModernBertConfig, index: int, prefix: str, parts: PartFactory) -> None:
        self.attn_norm = _norm(config, f"{prefix}.attn_norm", parts) if index else None
        self.attn = SelfAttention(config, index, f"{prefix}.attn", parts, o_name="Wo")
        self.mlp_norm = _norm(config, f"{prefix}.mlp_norm", parts)
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts, down_name="Wo")

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        normed = hidden if self.attn_norm is None else self.attn_norm(hidden)
        hidden = self.attn(normed, context, residual=hidden)
        return self.mlp(self.mlp_norm(hidden), residual=hidden)


def _norm(config: ModernBertConfig, name: str, parts: PartFactory) -> LayerNorm:
    return parts.layer_norm(name, config.hidden_size, config.norm_eps, bias=config.norm_bias)


class ModernBertModel(EncoderModel):
    """A token sees half of ``local_attention`` on either side of it in layers with a window."""

    model_type = "modernbert"
    layer_class = ModernBertLayer
    own_modules = ("embeddings", "layers", "final_norm")
    unused = ("head.", "decoder.")
    config: ModernBertConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ModernBertConfig:
        fields = encoder_fields(config, activation="hidden_activation", norm_eps="norm_eps")
        num_layers, sides = fields["num_layers"], positive(config, "local_attention") // 2
        windows = {"full_attention": None, "sliding_attention": sides + 1}
        kinds = layer_types(config, num_layers)
        if unknown := set(kinds) - set(windows):
            raise UnsupportedModelError(
                f"layer_types: {', '.join(sorted(unknown))} is not supported: expected {' or '.join(windows)}"
            )
        fields |= {
            "ropes": read_ropes(config, fields["max_position_embeddings"], [fields["head_dim"]] * num_layers),
            "sliding_windows": tuple(windows[kind] for kind in kinds),
            "qkv_names": ("Wqkv",),
            "gate_up_names": ("Wi",),
            "qkv_bias": config.attention_bias,
            "o_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
        }
        return ModernBertConfig(
            **fields,
            norm_bias=bool(config.norm_bias),
            classifier_bias=bool(config.classifier_bias),
            classifier_activation=read_activation("classifier_activation", config.classifier_activation),
        )

    @classmethod
    def pooling_of(cls, raw: Mapping[str, Any], architecture: str) -> PoolingType:
        """That of the classifier, if there is one."""
        if not architecture.endswith("ForSequenceClassification"):
            return cls.default_pooling
        named = raw.get("classifier_pooling", "cls")
        if named not in ("cls", "mean"):
            raise UnsupportedModelError(f"classifier_pooling={named!r} is not supported: expected 'cls' or 'mean'")
        return PoolingType[named.upper()]

    def make_embedding(self, parts: PartFactory) -> None:
        config, prefix = self.config, f"{self.prefix}.embeddings"
        self.tok_embeddings = parts.vocab_parallel_embedding(
            f"{prefix}.tok_embeddings", config.vocab_size, config.hidden_size
        )
        self.embedding_norm = _norm(config, f"{prefix}.norm", parts)

    def make_norm(self, parts: PartFactory) -> LayerNorm:
        return _norm(self.config, f"{self.prefix}.final_norm", parts)

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """Transformers' ``head`` and ``classifier``."""
        config, hidden = self.config, self.config.hidden_size
        if (activation := _OF_CLASSIFIERS.get(config.classifier_activation)) is None:
            names = " or ".join(each.name.lower() for each in _OF_CLASSIFIERS)
            raise UnsupportedModelError(f"classifier_activation is not supported: expected {names}")
        dense = parts.float32_linear("head.dense", hidden, hidden, bias=config.classifier_bias)
        norm = _norm(config, "head.norm", parts)
        output = parts.float32_linear("classifier", hidden, num_labels, bias=True)
        return DenseClassifier(parts, dense, activation, output, norm)

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.embedding_norm(self.tok_embeddings(input_ids))
