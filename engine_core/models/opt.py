"""OPT (https://arxiv.org/abs/2205.01068): learned positions, layer norms, a feed-forward block without a gate, and, in
one size, post-norm and embeddings narrower than the layers. Galactica has this format, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from engine_core.activation import read_activation
from engine_core.errors import CheckpointError
from engine_core.forward_context import LayerContext
from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.norm import LayerNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import MOST_POSITIONS
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import MOST_HEADS, MOST_LAYERS, ArchitectureConfig, positive

_NORM_EPS = 1e-5
_FIRST_POSITION = 2
"""The table row of position 0; the rows before it were for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OPTConfig(ArchitectureConfig):
    """Options in which members of the family differ."""

    norm_weights: bool
    pre_norm: bool
    """Norms before the blocks, instead of after the residual."""
    final_norm: bool
    embedding_size: int


class OPTLayer:
    """Attention, then a feed-forward block, with a residual each, and a norm before the block or after the sum
    (https://arxiv.org/abs/1706.03762).
    """

    def __init__(self, config: OPTConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts, o_name="out_proj")
        self.self_attn_layer_norm = _norm(config, f"{prefix}.self_attn_layer_norm", parts)
        self.fc1 = parts.linear(f"{prefix}.fc1", hidden, inner, bias=bias)
        self.fc2 = parts.linear(f"{prefix}.fc2", inner, hidden, bias=bias)
        self.final_layer_norm = _norm(config, f"{prefix}.final_layer_norm", parts)
        self._pre_norm = config.pre_norm
        self._activation = config.activation
        self._activate = parts.backend.activate

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        if self._pre_norm:
            hidden = self.self_attn(self.self_attn_layer_norm(hidden), context, residual=hidden)
            return self._mlp(self.final_layer_norm(hidden), residual=hidden)
        hidden = self.self_attn_layer_norm(self.self_attn(hidden, context, residual=hidden))
        return self.final_layer_norm(self._mlp(hidden, residual=hidden))

    def _mlp(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.fc2(self._activate(self.fc1(x), self._activation), residual)


def _norm(config: OPTConfig, name: str, parts: PartFactory) -> LayerNorm:
    return parts.layer_norm(name if config.norm_weights else None, config.hidden_size, config.norm_eps)


class OPTForCausalLM(CausalLM):
    """The position table limits positions."""

    model_type = "opt"
    prefix = "model.decoder"
    layer_class = OPTLayer
    config: OPTConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> OPTConfig:
        hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads", MOST_HEADS)
        if hidden_size % num_heads:
            raise CheckpointError(f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_heads}")
        num_layers, pre_norm = positive(config, "num_hidden_layers", MOST_LAYERS), config.do_layer_norm_before
        return OPTConfig(
            vocab_size=positive(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=positive(config, "ffn_dim"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            activation=read_activation("activation_function", config.activation_function),
            norm_eps=_NORM_EPS,
            max_position_embeddings=positive(config, "max_position_embeddings", MOST_POSITIONS),
            tie_word_embeddings=config.tie_word_embeddings,
            ropes=(None,) * num_layers,
            sliding_windows=(None,) * num_layers,
            qkv_bias=config.enable_bias,
            o_bias=config.enable_bias,
            mlp_bias=config.enable_bias,
            norm_weights=config.layer_norm_elementwise_affine,
            pre_norm=pre_norm,
            final_norm=pre_norm and not config._remove_final_layer_norm,
            embedding_size=positive(config, "word_embed_proj_dim"),
        )

    def __init__(self, config: OPTConfig, parts: PartFactory, max_model_len: int) -> None:
        super().__init__(config, parts, max_model_len)
        if not self.is_first_stage:
            return
        self.embed_positions = parts.vocab_parallel_embedding(
            f"{self.prefix}.embed_positions",
            config.max_position_embeddings + _FIRST_POSITION,
            config.hidden_size,
            of_tokens=False,
        )
        self.project_in = None
        if config.embedding_size != config.hidden_size:
            self.project_in = parts.linear(f"{self.prefix}.project_in", config.embedding_size, config.hidden_size)

    @property
    def embedding_size(self) -> int:
        return self.config.embedding_size

    def make_norm(self, parts: PartFactory) -> OPTOutput:
        config, norm, project_out = self.config, None, None
        if config.final_norm:
            norm = _norm(config, f"{self.prefix}.final_layer_norm", parts)
        if config.embedding_size != config.hidden_size:
            project_out = parts.linear(f"{self.prefix}.project_out", config.hidden_size, config.embedding_size)
        return OPTOutput(norm, project_out)

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        tokens, places = self.embed_tokens(input_ids), self.embed_positions(positions + _FIRST_POSITION)
        return places + tokens if self.project_in is None else self.project_in(tokens, places)

    @classmethod
    def renamed(cls, name: str) -> str:
        """Checkpoints saved without a head have names that begin with ``decoder``."""
        return f"model.{name}" if name.startswith("decoder.") else name

    def is_redundant(self, name: str) -> bool:
        """True also for the format's version number."""
        return name == f"{self.prefix}.version" or super().is_redundant(name)


class OPTOutput:
    """The norm after the last layer and the projection to the embedding size, both optional."""

    def __init__(self, norm: LayerNorm | None, project_out: ColumnParallelLinear | None) -> None:
        self._norm = norm
        self._project_out = project_out

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, embedding size] for ``hidden`` [R, H]."""
        hidden = hidden if self._norm is None else self._norm(hidden)
        return hidden if self._project_out is None else self._project_out(hidden)
