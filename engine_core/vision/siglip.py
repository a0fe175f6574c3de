"""SigLIP's vision transformer (Zhai et al., 2023, https://arxiv.org/abs/2303.15343), the tower of several families.

Symbols in shapes: N patches, H hidden size of the tower, padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation, read_activation
from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import CHANNELS, MAX_SIDE
from engine_core.models.model_config import MOST_HEADS, MOST_LAYERS, positive, read_norm_eps
from engine_core.ops.base import HeadsShape
from engine_core.vision.parts import StoredMatrix, attend
from engine_core.weights.features import Features

MOST_PATCHES = 2**16
"""Of a view: more would take minutes to encode."""


@dataclass(frozen=True, slots=True)
class SiglipShape:
    """Sizes of the tower."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    """Pixels of a view's side."""
    patch_size: int
    activation: Activation
    norm_eps: float

    @classmethod
    def read(cls, config: PretrainedConfig) -> SiglipShape:
        """``config``: the tower's. Raises ``CheckpointError``, ``UnsupportedModelError``."""
        hidden, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads", MOST_HEADS)
        if hidden % heads:
            raise CheckpointError(
                f"vision_config: hidden_size={hidden} is not a multiple of num_attention_heads={heads}"
            )
        if (channels := positive(config, "num_channels")) != CHANNELS:
            raise CheckpointError(f"vision_config: num_channels={channels} is not usable: expected {CHANNELS}")
        image_size, patch_size = positive(config, "image_size", MAX_SIDE), positive(config, "patch_size", MAX_SIDE)
        if not 1 <= (image_size // patch_size) ** 2 <= MOST_PATCHES:
            raise CheckpointError(
                f"vision_config: image_size={image_size} and patch_size={patch_size} are not usable together: expected "
                f"1 to {MOST_PATCHES} patches"
            )
        return cls(
            hidden,
            positive(config, "intermediate_size"),
            positive(config, "num_hidden_layers", MOST_LAYERS),
            heads,
            image_size,
            patch_size,
            read_activation("hidden_act", config.hidden_act),
            read_norm_eps(config, "layer_norm_eps"),
        )

    @property
    def side(self) -> int:
        """Patches along a view's side."""
        return self.image_size // self.patch_size


class SiglipLayer:
    """Attention of all patches to all, then a feed-forward block; each after a norm, with a residual."""

    def __init__(self, shape: SiglipShape, prefix: str, parts: PartFactory) -> None:
        hidden, heads, width = shape.hidden_size, shape.num_heads, shape.hidden_size // shape.num_heads
        names = tuple(f"{prefix}.self_attn.{each}_proj" for each in "qkv")
        self.layer_norm1 = parts.layer_norm(f"{prefix}.layer_norm1", hidden, shape.norm_eps)
        self.qkv = parts.qkv_linear(names, hidden, HeadsShape(heads, heads, width, rotary_dim=0), bias=True)
        self.out_proj = parts.linear(f"{prefix}.self_attn.out_proj", Features(heads, width), hidden, bias=True)
        self.layer_norm2 = parts.layer_norm(f"{prefix}.layer_norm2", hidden, shape.norm_eps)
        self.fc1 = parts.linear(f"{prefix}.mlp.fc1", hidden, shape.intermediate_size, bias=True)
        self.fc2 = parts.linear(f"{prefix}.mlp.fc2", shape.intermediate_size, hidden, bias=True)
        self._activate, self._activation = parts.backend.activate, shape.activation
        self._num_heads = heads
        self._scale = width**-0.5

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] of ``hidden`` [N, H], which is overwritten."""
        qkv = self.qkv(self.layer_norm1(hidden)).view(len(hidden), 3 * self._num_heads, -1)
        query, key, value = torch.split(qkv, self._num_heads, dim=1)
        hidden = self.out_proj(attend(query, key, value, self._scale), residual=hidden)
        inner = self._activate(self.fc1(self.layer_norm2(hidden)), self._activation)
        return self.fc2(inner, residual=hidden)


class SiglipTower:
    """Embedding of patches and their places, layers, norm."""

    def __init__(self, shape: SiglipShape, prefix: str, parts: PartFactory, places: torch.Tensor | None = None) -> None:
        """``places`` [N] int64: rows of the table of positions, by default one after the other."""
        self.shape = shape
        count = shape.side**2
        self.patch_embedding = StoredMatrix.convolution(
            f"{prefix}.embeddings.patch_embedding", CHANNELS, shape.patch_size, shape.hidden_size, parts
        )
        self.position_embedding = parts.vocab_parallel_embedding(
            f"{prefix}.embeddings.position_embedding", count, shape.hidden_size
        )
        layers = f"{prefix}.encoder.layers"
        self.layers = [SiglipLayer(shape, f"{layers}.{index}", parts) for index in range(shape.num_layers)]
        self.post_layernorm = parts.layer_norm(f"{prefix}.post_layernorm", shape.hidden_size, shape.norm_eps)
        self._places = (torch.arange(count) if places is None else places).to(parts.device)

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """[N, H] of ``patches`` [N, K], of the model's type."""
        hidden = self.patch_embedding(patches, residual=self.position_embedding(self._places))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.post_layernorm(hidden)
