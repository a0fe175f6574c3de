"""DeepSeek-OCR 2's second encoder (https://arxiv.org/abs/2601.20552): Qwen2's layers over the features of a view, which
attend to each other both ways, followed by learned queries, which attend to the features and to earlier queries.

Symbols in shapes: F features, Q queries, W width with the backend's padding, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.activation import Activation
from engine_core.layers.part_factory import PartFactory
from engine_core.vision.attention import attend, widened
from engine_core.weights.features import Features


@dataclass(frozen=True, slots=True)
class QueryEncoderShape:
    """Sizes of the encoder; by default those of the published one beside its width."""

    width: int
    num_layers: int = 24
    num_heads: int = 14
    num_kv_heads: int = 2
    intermediate_size: int = 4864
    eps: float = 1e-6
    rope_theta: float = 1_000_000.0

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads


class QueryEncoder:
    """Turns features into as many vectors as there are queries."""

    def __init__(self, shape: QueryEncoderShape, prefix: str, parts: PartFactory) -> None:
        self.layers = [QueryLayer(shape, f"{prefix}.layers.{index}", parts) for index in range(shape.num_layers)]
        self.norm = parts.rms_norm(f"{prefix}.norm", shape.width, shape.eps)
        self._shape = shape

    def __call__(self, features: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """[Q, W] of ``features`` [F, W] and ``queries`` [Q, W]."""
        hidden, count = torch.cat([features, queries]), len(features)
        rotation = self._rotation(len(hidden), hidden)
        for layer in self.layers:
            hidden = layer(hidden, count, rotation)
        return self.norm(hidden[count:])

    def _rotation(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """[2, rows, 1, D] float32: cosines and sines, rounded to the type of ``like`` as in transformers."""
        size = self._shape.head_dim
        frequencies = 1.0 / self._shape.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = (torch.arange(rows, dtype=torch.float32)[:, None] * frequencies).repeat(1, 2)
        both = torch.stack([angles.cos(), angles.sin()]).to(like.device, like.dtype)
        return both.float()[:, :, None]


class QueryLayer:
    """Attention and a gated feed-forward block, each with a norm before it and a residual."""

    def __init__(self, shape: QueryEncoderShape, prefix: str, parts: PartFactory) -> None:
        width, size, attention = shape.width, shape.head_dim, f"{prefix}.self_attn"
        counts = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        self.input_norm = parts.rms_norm(f"{prefix}.input_layernorm", width, shape.eps)
        self.qkv_proj = parts.linear(
            tuple(f"{attention}.{name}_proj" for name in "qkv"),
            width,
            Features(sum(counts), size),
            bias=True,
            rows=tuple(count * size for count in counts),
        )
        self.o_proj = parts.linear(f"{attention}.o_proj", Features(shape.num_heads, size), width)
        self.post_norm = parts.rms_norm(f"{prefix}.post_attention_layernorm", width, shape.eps)
        self.gate_up_proj = parts.merged_linear(
            (f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"), width, shape.intermediate_size
        )
        self.down_proj = parts.linear(f"{prefix}.mlp.down_proj", shape.intermediate_size, width)
        self._act_and_mul = parts.backend.act_and_mul
        self._counts = counts
        self._size = size

    def __call__(self, hidden: torch.Tensor, features: int, rotation: torch.Tensor) -> torch.Tensor:
        """[F + Q, W] of ``hidden`` [F + Q, W], of which the first ``features`` rows are features."""
        heads = self.qkv_proj(self.input_norm(hidden)).view(len(hidden), sum(self._counts), -1)
        attended = self._attended(widened(heads), features, rotation).to(hidden.dtype)
        hidden = self.o_proj(attended, hidden)
        return self.down_proj(self._act_and_mul(self.gate_up_proj(self.post_norm(hidden)), Activation.SILU), hidden)

    def _attended(self, heads: torch.Tensor, features: int, rotation: torch.Tensor) -> torch.Tensor:
        """[F + Q, heads · D] of queries, keys and values [F + Q, heads, D]."""
        queries, keys, values = torch.split(heads, list(self._counts), dim=1)
        queries, keys = self._rotated(queries, rotation), self._rotated(keys, rotation)
        queries, keys, values = (each.transpose(0, 1)[None].contiguous() for each in (queries, keys, values))
        places = torch.arange(len(heads), device=heads.device)

        def is_seen(first: int, last: int) -> torch.Tensor:
            return places[None] <= places[features + first : features + last, None]

        scale = self._size**-0.5
        of_features = attend(queries[:, :, :features], keys[:, :, :features], values[:, :, :features], scale)
        of_queries = attend(queries[:, :, features:], keys, values, scale, is_seen)
        return torch.cat([of_features[0], of_queries[0]])

    def _rotated(self, heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """``heads`` [N, heads, D], padded, with the first and second halves of each as pairs."""
        own = heads[..., : self._size]
        first, second = own.chunk(2, dim=-1)
        cosines, sines = rotation.to(heads.dtype)
        turned = own * cosines + torch.cat([-second, first], dim=-1) * sines
        return torch.nn.functional.pad(turned, (0, heads.shape[-1] - self._size))
