"""CLIP's encoder of pictures (https://arxiv.org/abs/2103.00020), over features of another encoder instead of pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.activation import Activation
from engine_core.layers.part_factory import PartFactory
from engine_core.vision.attention import attend, widened
from engine_core.vision.sam import resized
from engine_core.weights.features import Features

_EPS = 1e-5
_QUICK_GELU = 1.702
"""x · σ(1.702 x) approximates GELU."""


@dataclass(frozen=True, slots=True)
class ClipShape:
    """Sizes of the encoder."""

    side: int
    """Tokens along a side that positions are learned for."""
    width: int
    num_layers: int
    num_heads: int


class ClipEncoder:
    """A stack of layers that attend in both directions."""

    def __init__(self, shape: ClipShape, prefix: str, parts: PartFactory) -> None:
        self._class = f"{prefix}.embeddings.class_embedding"
        self._positions = f"{prefix}.embeddings.position_embedding.weight"
        self.embeddings = parts.learned(
            {self._class: (shape.width,), self._positions: (shape.side**2 + 1, shape.width)}
        )
        self.pre_norm = parts.layer_norm(f"{prefix}.pre_layrnorm", shape.width, _EPS)
        self.layers = [
            ClipLayer(shape, f"{prefix}.transformer.layers.{index}", parts) for index in range(shape.num_layers)
        ]
        self._side = shape.side

    def __call__(self, grid: torch.Tensor) -> torch.Tensor:
        """[S · S, W] of ``grid`` [S, S, W]."""
        side, positions = grid.shape[0], self.embeddings[self._positions]
        learned = positions[1:].view(self._side, self._side, -1)
        first = self.embeddings[self._class] + positions[0]
        patches = (grid + resized(learned, side)).flatten(0, 1)
        hidden = self.pre_norm(torch.cat([first[None], patches]))
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden[1:]


class ClipLayer:
    """Attention and a feed-forward block, each with a norm before it and a residual."""

    def __init__(self, shape: ClipShape, prefix: str, parts: PartFactory) -> None:
        width, size = shape.width, shape.width // shape.num_heads
        self.layer_norm1 = parts.layer_norm(f"{prefix}.layer_norm1", width, _EPS)
        self.qkv_proj = parts.linear(
            f"{prefix}.self_attn.qkv_proj", width, Features(3 * shape.num_heads, size), bias=True
        )
        self.out_proj = parts.linear(f"{prefix}.self_attn.out_proj", Features(shape.num_heads, size), width, bias=True)
        self.layer_norm2 = parts.layer_norm(f"{prefix}.layer_norm2", width, _EPS)
        self.fc1 = parts.linear(f"{prefix}.mlp.fc1", width, 4 * width, bias=True)
        self.fc2 = parts.linear(f"{prefix}.mlp.fc2", 4 * width, width, bias=True)
        self._activate = parts.backend.activate
        self._num_heads = shape.num_heads
        self._scale = size**-0.5

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, W] of ``hidden`` [N, W]."""
        heads = self.qkv_proj(self.layer_norm1(hidden)).view(1, len(hidden), 3, self._num_heads, -1)
        queries, keys, values = widened(heads.permute(2, 0, 3, 1, 4)).contiguous()
        attended = attend(queries, keys, values, self._scale)
        hidden = self.out_proj(attended[0].to(hidden.dtype), hidden)
        inner = self.fc1(self.layer_norm2(hidden))
        return self.fc2(self._activate(inner * _QUICK_GELU, Activation.SIGMOID, inner), hidden)
