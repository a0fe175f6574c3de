"""NomicBERT (https://arxiv.org/abs/2402.01613): BERT with rotations in place of a table of positions, gated blocks,
and layers without biases. Tensors have the names of its publisher, which transformers keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.bert import BertConfig, types_of_tokens
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.classifiers import DenseClassifier
from engine_core.models.encoder_model import EncoderModel, encoder_fields
from engine_core.models.model_config import positive, read_ropes
from engine_core.pooling.pooler import Head

_PUBLISHED = {
    "activation_function": ("swiglu",),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "num_experts": (0, None),
    "prenorm": (False,),
    "qkv_proj_bias": (False,),
    "rotary_emb_fraction": (1, 1.0),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "rotary_scaling_factor": (None,),
    "use_rms_norm": (False, None),
}
"""Fields of the publisher's config.json that transformers does not read, with the values that it computes with."""
_RENAMED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_parameters",
}
"""The publisher's names of sizes, which transformers does not read either, and its own."""


class NomicBertLayer:
    """Attention, then a feed-forward block, with a norm after each sum with the residual."""

    def __init__(self, config: BertConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.attn = SelfAttention(config, index, f"{prefix}.attn", parts, o_name="out_proj")
        self.norm1 = parts.layer_norm(f"{prefix}.norm1", hidden, eps)
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts, down_name="fc2")
        self.norm2 = parts.layer_norm(f"{prefix}.norm2", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.norm1(self.attn(hidden, context, residual=hidden))
        return self.norm2(self.mlp(hidden, residual=hidden))


class NomicBertModel(EncoderModel):
    """Rotations limit positions."""

    model_type = "nomic_bert"
    prefix = "nomic_bert"
    layers_name = "encoder.layers"
    layer_class = NomicBertLayer
    own_modules = ("embeddings", "emb_ln", "encoder", "pooler")
    unused = ("nomic_bert.pooler.", "cls.")
    config: BertConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        for name, accepted in _PUBLISHED.items():
            if name in raw and raw[name] not in accepted:
                shown = " or ".join(map(repr, accepted))
                raise UnsupportedModelError(f"{name}={raw[name]!r} is not supported: expected {shown}")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> BertConfig:
        _require_read(config)
        fields = encoder_fields(config)
        head_dims = [fields["head_dim"]] * fields["num_layers"]
        fields |= {
            "ropes": read_ropes(config, fields["max_position_embeddings"], head_dims),
            "qkv_names": ("Wqkv",),
            "gate_up_names": ("fc12", "fc11"),
        }
        return BertConfig(**fields, type_vocab_size=positive(config, "type_vocab_size"))

    def make_embedding(self, parts: PartFactory) -> None:
        config, hidden, prefix = self.config, self.config.hidden_size, f"{self.prefix}.embeddings"
        self.word_embeddings = parts.vocab_parallel_embedding(f"{prefix}.word_embeddings", config.vocab_size, hidden)
        self.token_type_embeddings = parts.vocab_parallel_embedding(
            f"{prefix}.token_type_embeddings", config.type_vocab_size, hidden, of_tokens=False
        )
        self.emb_ln = parts.layer_norm(f"{self.prefix}.emb_ln", hidden, config.norm_eps)

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """As BERT's."""
        hidden = self.config.hidden_size
        if per_token:
            return parts.float32_linear("classifier", hidden, num_labels, bias=True)
        dense = parts.float32_linear(f"{self.prefix}.pooler.dense", hidden, hidden, bias=True)
        output = parts.float32_linear("classifier", hidden, num_labels, bias=True)
        return DenseClassifier(parts, dense, "Tanh", output)

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        types = types_of_tokens(input_ids, token_types, self.config.type_vocab_size)
        return self.emb_ln(self.word_embeddings(input_ids) + self.token_type_embeddings(types))


def _require_read(config: PretrainedConfig) -> None:
    """Raise ``UnsupportedModelError`` if the publisher's names have other sizes than transformers has taken."""
    for published, name in _RENAMED.items():
        given, taken = getattr(config, published, None), getattr(config, name)
        taken = taken["rope_theta"] if isinstance(taken, dict) else taken
        if given is not None and given != taken:
            raise UnsupportedModelError(
                f"{published}={given!r} is not read by transformers, which takes {taken!r}: name it {name}"
            )
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise UnsupportedModelError(
            f"head_dim={config.head_dim} is not supported: expected hidden_size / num_attention_heads"
        )
