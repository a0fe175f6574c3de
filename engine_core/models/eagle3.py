"""EAGLE-3 heads (Li et al., 2025, https://arxiv.org/abs/2503.01840): one layer that drafts for another model, the
target, from the inputs of three of its layers.

At position p the head takes the *feature* of p, made from the target's hidden states there, and the token at p + 1. Its
output predicts the token at p + 2, and is the feature of p + 1 where the target has not computed that yet.

Symbols in shapes: T rows, R wanted rows, H hidden size with the backend's padding, V the target's vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.forward_context import ForwardContext, LayerContext, LayerPlace
from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import Rotary
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.language_model import LanguageModel
from engine_core.models.model_config import ArchitectureConfig, common_fields, positive
from engine_core.ops.base import Greatest
from engine_core.weights.features import Features
from engine_core.weights.source import Weights

_LAYER = "midlayer"
_LAYER_ELSEWHERE = "layers.0."
"""What other publishers call it."""

Embed = Callable[[torch.Tensor], torch.Tensor]
"""Embeddings [T, H] of token ids [T] int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(ArchitectureConfig):
    """The shape of a head; ``vocab_size`` is the target's."""

    draft_vocab_size: int
    """Tokens that it can draft."""
    target_hidden_size: int
    num_taps: int
    """Layers of the target whose inputs it takes."""
    norm_before_residual: bool
    """Whether the residual stream starts with the normalized feature."""


class Eagle3Layer:
    """Attention over embedding and feature side by side, then a feed-forward block; the residual is the feature."""

    def __init__(self, config: Eagle3Config, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = SelfAttention(config, 0, f"{_LAYER}.self_attn", parts, inputs=Features(2, hidden))
        self.mlp = GatedMLP(config, f"{_LAYER}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{_LAYER}.input_layernorm", hidden, eps)
        self.hidden_norm = parts.rms_norm(f"{_LAYER}.hidden_norm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{_LAYER}.post_attention_layernorm", hidden, eps)
        self._norm_before_residual = config.norm_before_residual

    def __call__(self, pairs: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """[R, H] for the wanted rows of ``pairs`` [T, 2 · H], embeddings and features, which are overwritten; the
        context's ``per_layer`` are the features alone.
        """
        features = context.per_layer
        assert features is not None
        width = features.shape[1]
        self.input_layernorm.in_place(pairs[:, :width])
        self.hidden_norm.in_place(pairs[:, width:])
        residual = pairs[:, width:] if self._norm_before_residual else features
        hidden = self.self_attn(pairs, context, residual=residual)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class DraftVocabulary(Part):
    """The target's tokens that a head can draft: d2t has the distance from each of its ids to the target's."""

    token_ids: torch.Tensor
    """[draft_vocab_size] int64: the target's."""

    def __init__(self, size: int, vocab_size: int, device: torch.device) -> None:
        self._size = size
        self._vocab_size = vocab_size
        self._device = device

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {"d2t": (self._size,)}

    @property
    def num_weights(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return 8 * self._size

    def load(self, weights: Weights) -> None:
        """Raise ``CheckpointError`` if it names tokens that the target lacks, or one twice."""
        token_ids = weights.take_stored("d2t").long() + torch.arange(self._size)
        if token_ids.min() < 0 or token_ids.max() >= self._vocab_size:
            raise CheckpointError(
                f"d2t names tokens from {token_ids.min()} to {token_ids.max()}: expected 0 to {self._vocab_size - 1}"
            )
        if len(set(token_ids.tolist())) < self._size:
            raise CheckpointError("d2t names a token twice")
        self.token_ids = token_ids.to(self._device)


class Eagle3Head(LanguageModel):
    """Its parts are in the order of their use. The embedding may be the target's."""

    config: Eagle3Config

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Eagle3Config:
        """Read the ``config`` of a head whose fields of its own are set: ``draft_vocab_size``, ``target_hidden_size``,
        ``num_taps`` and ``norm_before_residual``.
        """
        fields, biased = common_fields(config), bool(config.attention_bias)
        if fields["num_layers"] != 1:
            raise CheckpointError(f"num_hidden_layers={fields['num_layers']} is not usable: expected 1")
        return Eagle3Config(
            **fields,
            qkv_bias=biased,
            o_bias=biased,
            mlp_bias=bool(config.mlp_bias),
            draft_vocab_size=positive(config, "draft_vocab_size"),
            target_hidden_size=positive(config, "target_hidden_size"),
            num_taps=positive(config, "num_taps"),
            norm_before_residual=bool(config.norm_before_residual),
        )

    def __init__(
        self,
        config: Eagle3Config,
        parts: PartFactory,
        max_model_len: int,
        *,
        embed: Embed | None = None,
        maps_tokens: bool = True,
    ) -> None:
        """``embed``: the target's embedding; None: the head has its own. ``maps_tokens``: whether it has a d2t; without
        one its tokens are the target's.
        """
        super().__init__(config, parts, max_model_len)
        self.has_embedding = embed is None
        hidden, eps = config.hidden_size, config.norm_eps
        taken = Features(config.num_taps, config.target_hidden_size)
        self.embed: Embed = embed or parts.vocab_parallel_embedding("embed_tokens", config.vocab_size, hidden)
        self.combine = parts.linear("fc", taken, hidden)
        """[T, H] features of the target's hidden states [T, taps · its hidden size], side by side."""
        self._layer = Eagle3Layer(config, parts)
        self.norm = parts.rms_norm("norm", hidden, eps)
        self.lm_head = parts.parallel_lm_head("lm_head", config.draft_vocab_size, hidden)
        self._vocabulary: DraftVocabulary | None = None
        if maps_tokens:
            self._vocabulary = DraftVocabulary(config.draft_vocab_size, config.vocab_size, parts.device)
            parts.parts.append(self._vocabulary)
        self._set_layers((0,))
        self._run_layer = parts.backend.captured(self._compute_layer)

    @property
    def num_taken(self) -> int:
        """Numbers per row that ``combine`` takes, with the backend's padding."""
        return self.config.num_taps * self._factory.backend.padded(self.config.target_hidden_size)

    @classmethod
    def renamed(cls, name: str) -> str:
        return f"{_LAYER}.{name.removeprefix(_LAYER_ELSEWHERE)}" if name.startswith(_LAYER_ELSEWHERE) else name

    def is_redundant(self, name: str) -> bool:
        """True for t2d, the reverse of d2t, and for an embedding that equals the target's."""
        return name in ("t2d", "embed_tokens.weight") or name.endswith(".rotary_emb.inv_freq")

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{_LAYER}.")

    def layer_kind(self, index: int) -> Hashable:
        return index

    def load(self, weights: Weights) -> None:
        """Compute the angles of all positions, then load as ``LanguageModel`` does."""
        [rope] = self.config.distinct_ropes
        self._rotary = Rotary(rope, self._max_model_len, self._factory.device)
        super().load(weights)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Outputs [R, H], or [T, H], before the last norm, for the *next* tokens of ``positions``, ``input_ids``. The
        context's ``per_layer`` are the features [T, H] of ``positions``, which may be overwritten.
        """
        assert context.per_layer is not None
        pairs = torch.cat([self.embed(input_ids), context.per_layer], 1)
        return self._run_layer(pairs, replace(context, angles=[self._rotary.angles(positions)]))

    def _compute_layer(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return self._layer(hidden, context.of_layer(LayerPlace(0, 0, 0), is_last=True))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Tokens that the head cannot draft have −∞."""
        logits = self.lm_head.logits(self.norm(hidden))
        if self._vocabulary is None:
            return logits
        of_all = logits.new_full((len(logits), self.config.vocab_size), -torch.inf)
        return of_all.index_copy_(1, self._vocabulary.token_ids, logits)

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        assert allowed is None
        found = self.lm_head.greatest(self.norm(hidden))
        if self._vocabulary is None:
            return found
        return Greatest(self._vocabulary.token_ids[found.ids], found.values)
