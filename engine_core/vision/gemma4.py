"""Gemma 4's vision model: a transformer over patches of pictures of any proportions, with positions in two dimensions,
then the means of neighbouring patches, a norm and a projection.

Every picture is one view. Where the configuration says so, its tokens see each other in both directions, in the
language model's layers with a window.

Symbols in shapes: N patches, H hidden size of the tower, padded, D head size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation, read_activation
from engine_core.errors import CheckpointError, InvalidRequestError, UnsupportedModelError
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.media import CHANNELS, MAX_SIDE, Picture, PictureShape, VisionShape
from engine_core.models.model_config import MOST_HEADS, MOST_LAYERS, positive, read_norm_eps
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.parts import ClippedLinear, StoredTensor, attend
from engine_core.vision.pixels import FIELD, Normalization, check_single_view, gray_picture, patches_of
from engine_core.vision.pooling import mean_of_squares
from engine_core.weights.features import Features

_NAME = re.compile(
    r"^(?:model\.)?(?P<own>(?:vision_tower\.(?:patch_embedder|encoder|std_bias|std_scale)|embed_vision)\b\S*)$"
)
_DEFAULT_TOKENS = 280
_ACCEPTED_TOKENS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True, slots=True)
class Gemma4VisionShape:
    """Sizes of the tower."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    patch_size: int
    pooled: int
    """Patches along the side of a square whose mean is a token."""
    num_positions: int
    """Most patches along a view's side."""
    theta: float
    activation: Activation
    norm_eps: float
    is_clipped: bool
    is_standardized: bool

    @classmethod
    def read(cls, config: PretrainedConfig) -> Gemma4VisionShape:
        """``config``: the tower's. Raises ``CheckpointError``, ``UnsupportedModelError``."""
        heads, groups = (positive(config, name, MOST_HEADS) for name in ("num_attention_heads", "num_key_value_heads"))
        if heads % groups:
            raise CheckpointError(
                f"vision_config: num_attention_heads={heads} is no multiple of {groups}, num_key_value_heads"
            )
        if (width := positive(config, "head_dim")) % 4:
            raise CheckpointError(f"vision_config: head_dim={width} is not usable: expected a multiple of 4")
        if config.attention_bias:
            raise UnsupportedModelError("vision_config: attention_bias=true is not supported: the tower has no biases")
        rope = config.rope_parameters
        if (kind := rope.get("rope_type")) != "axial":
            raise UnsupportedModelError(f"vision_config: rope_type={kind!r} is not supported: expected 'axial'")
        theta = rope.get("rope_theta")
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not 1 <= theta < math.inf:
            raise CheckpointError(f"vision_config: rope_theta={theta!r} is not usable: expected a number from 1 on")
        return cls(
            positive(config, "hidden_size"),
            positive(config, "intermediate_size"),
            positive(config, "num_hidden_layers", MOST_LAYERS),
            heads,
            groups,
            width,
            positive(config, "patch_size", MAX_SIDE),
            positive(config, "pooling_kernel_size", MAX_SIDE),
            positive(config, "position_embedding_size"),
            float(theta),
            read_activation("hidden_activation", config.hidden_activation),
            read_norm_eps(config, "rms_norm_eps"),
            bool(config.use_clipped_linears),
            bool(config.standardize),
        )

    @property
    def token_size(self) -> int:
        """Pixels along the side of a token."""
        return self.patch_size * self.pooled


class Rotations(NamedTuple):
    """Of each patch by its column, in the first half of a head, and its row, in the second."""

    cos: torch.Tensor
    """[N, 1, 2, D / 2] float32, like ``sin``."""
    sin: torch.Tensor

    def rotated(self, heads: torch.Tensor) -> torch.Tensor:
        """``heads`` [N, heads, padded D], rotated."""
        half = self.cos.shape[-1]
        halves = heads[..., : 2 * half].float().reshape(*heads.shape[:2], 2, half)
        first, second = halves.chunk(2, dim=-1)
        turned = halves * self.cos + torch.cat([-second, first], -1) * self.sin
        return torch.cat([turned.flatten(-2).to(heads.dtype), heads[..., 2 * half :]], -1)


class Angles:
    """The cosines and sines of all places along a side; by numpy, as torch's depend on the number of threads."""

    def __init__(self, count: int, head_dim: int, theta: float, device: torch.device) -> None:
        """For ``count`` places."""
        half = head_dim // 2
        frequencies = 1.0 / theta ** (np.arange(0, half, 2, dtype=np.float32) / half)
        angles = (np.arange(count, dtype=np.float32)[:, None] * frequencies.astype(np.float32)).astype(np.float64)
        cos, sin = (torch.from_numpy(function(angles)).float() for function in (np.cos, np.sin))
        self._cos, self._sin = torch.cat([cos, cos], -1).to(device), torch.cat([sin, sin], -1).to(device)

    def of(self, columns: torch.Tensor, rows: torch.Tensor) -> Rotations:
        """For patches in ``columns`` and ``rows`` [N]."""
        places = torch.stack([columns, rows], 1)[:, None]
        return Rotations(self._cos[places], self._sin[places])


class Gemma4VisionLayer:
    """Attention of all patches to all, then a feed-forward block; each between two norms, with a residual."""

    def __init__(self, shape: Gemma4VisionShape, prefix: str, parts: PartFactory) -> None:
        def norm(name: str) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", shape.hidden_size, shape.norm_eps)

        def linear(name: str, inputs: Features, outputs: Features) -> ClippedLinear:
            return ClippedLinear(f"{prefix}.{name}", inputs, outputs, parts, is_clipped=shape.is_clipped)

        attention, eps, head = f"{prefix}.self_attn", shape.norm_eps, Features(1, shape.head_dim)
        queries, keys = (Features(count, shape.head_dim) for count in (shape.num_heads, shape.num_kv_heads))
        hidden, inner = Features(1, shape.hidden_size), Features(1, shape.intermediate_size)
        self.input_layernorm = norm("input_layernorm")
        self.q_proj = linear("self_attn.q_proj", hidden, queries)
        self.k_proj = linear("self_attn.k_proj", hidden, keys)
        self.v_proj = linear("self_attn.v_proj", hidden, keys)
        self.q_norm = parts.rms_norm(f"{attention}.q_norm", head, eps)
        self.k_norm = parts.rms_norm(f"{attention}.k_norm", head, eps)
        self.v_norm = parts.rms_norm(None, head, eps)
        self.o_proj = linear("self_attn.o_proj", queries, hidden)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.gate_proj = linear("mlp.gate_proj", hidden, inner)
        self.up_proj = linear("mlp.up_proj", hidden, inner)
        self.down_proj = linear("mlp.down_proj", inner, hidden)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")
        self._activate, self._activation = parts.backend.activate, shape.activation
        self._counts = shape.num_heads, shape.num_kv_heads, shape.num_kv_heads

    def __call__(self, hidden: torch.Tensor, rotations: Rotations) -> torch.Tensor:
        """[N, H] of ``hidden`` [N, H]."""
        attended = self._attended(self.input_layernorm(hidden), rotations)
        hidden = self.post_attention_layernorm(attended, residual=hidden)
        x = self.pre_feedforward_layernorm(hidden)
        inner = self._activate(self.gate_proj(x), self._activation, self.up_proj(x))
        return self.post_feedforward_layernorm(self.down_proj(inner), residual=hidden)

    def _attended(self, x: torch.Tensor, rotations: Rotations) -> torch.Tensor:
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query, key, value = (heads.view(len(x), n, -1) for heads, n in zip(projected, self._counts, strict=True))
        query, key = rotations.rotated(self.q_norm(query)), rotations.rotated(self.k_norm(key))
        return self.o_proj(attend(query, key, self.v_norm(value), 1.0))


class Gemma4Tower:
    """Embedding of patches and their places, layers, means of squares."""

    def __init__(self, shape: Gemma4VisionShape, max_tokens: int, prefix: str, parts: PartFactory) -> None:
        """``max_tokens``: of the largest picture."""
        self.shape = shape
        hidden, embedder = shape.hidden_size, f"{prefix}.patch_embedder"
        self.input_proj = parts.linear(f"{embedder}.input_proj", shape.patch_size**2 * CHANNELS, hidden)
        table = (2, shape.num_positions, hidden)
        self.positions = StoredTensor(f"{embedder}.position_embedding_table", table, parts)
        """Of columns, then of rows."""
        layers = f"{prefix}.encoder.layers"
        self.layers = [Gemma4VisionLayer(shape, f"{layers}.{index}", parts) for index in range(shape.num_layers)]
        self.standard: tuple[StoredTensor, StoredTensor] | None = None
        if shape.is_standardized:
            self.standard = (
                StoredTensor(f"{prefix}.std_bias", (hidden,), parts),
                StoredTensor(f"{prefix}.std_scale", (hidden,), parts),
            )
        self._angles = Angles(max_tokens * shape.pooled, shape.head_dim, shape.theta, parts.device)
        self._padded = parts.backend.padded

    def __call__(self, patches: torch.Tensor, columns: int) -> torch.Tensor:
        """[tokens, H] of ``patches`` [N, K], ``columns`` in a row."""
        shape = self.shape
        places = torch.arange(len(patches), device=patches.device)
        x, y = places % columns, places // columns
        table = self.positions.values
        missing = self._padded(patches.shape[1]) - patches.shape[1]
        padded = torch.nn.functional.pad(patches, (0, missing))
        hidden = self.input_proj(padded, residual=table[0][x] + table[1][y])
        rotations = self._angles.of(x, y)
        for layer in self.layers:
            hidden = layer(hidden, rotations)
        pooled: torch.Tensor = mean_of_squares(hidden, columns, shape.pooled).float() * shape.hidden_size**0.5
        if self.standard is not None:
            bias, scale = self.standard
            pooled = (pooled - bias.values.float()) * scale.values.float()
        return pooled.to(hidden.dtype)


class Gemma4Vision(VisionModel):
    """Of ``Gemma4ForConditionalGeneration``."""

    model_type = "gemma4"

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        tower = Gemma4VisionShape.read(config.vision_config)
        tokens = preprocessor.get("max_soft_tokens", _DEFAULT_TOKENS)
        if tokens not in _ACCEPTED_TOKENS:
            accepted = ", ".join(map(str, _ACCEPTED_TOKENS))
            raise CheckpointError(
                f"max_soft_tokens={tokens!r} of the preprocessor is not usable: expected one of {accepted}"
            )
        for name, own in (("patch_size", tower.patch_size), ("pooling_kernel_size", tower.pooled)):
            if (other := preprocessor.get(name, own)) != own:
                raise CheckpointError(
                    f"{name}={other!r} of the preprocessor contradicts vision_config, which has {own}"
                )
        if tokens * tower.pooled > tower.num_positions or tokens * tower.token_size > MAX_SIDE:
            raise CheckpointError(
                f"max_soft_tokens={tokens} of the preprocessor is not usable: vision_config has places for "
                f"{tower.num_positions} patches along a side (position_embedding_size)"
            )
        _normalization(preprocessor)
        both_ways = config.get_text_config().use_bidirectional_attention == "vision"
        return VisionShape(max_tokens=tokens, attends_both_ways=both_ways, both_ways_in_full=False)

    @classmethod
    def renamed(cls, name: str) -> str | None:
        return None if (found := _NAME.match(name)) is None else found["own"]

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        tower, text = Gemma4VisionShape.read(config.vision_config), positive(config.get_text_config(), "hidden_size")
        self._tower = Gemma4Tower(tower, shape.max_tokens, "vision_tower", parts)
        self._norm = parts.rms_norm(None, tower.hidden_size, tower.norm_eps)
        self._projection = parts.linear("embed_vision.embedding_projection", tower.hidden_size, text)
        self._normalization = _normalization(preprocessor)
        self._dtype, self._device = parts.dtype, parts.device

    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        size, view = self._tower.shape.patch_size, picture.views[0]
        patches = patches_of(2 * (self._normalization(view) - 0.5), size, channels_last=True)
        pooled = self._tower(patches.to(self._device, self._dtype), view.width // size)
        return Encoded(self._projection(self._norm(pooled)))

    def check(self, picture: Picture) -> None:
        size, most = self._tower.shape.token_size, self.shape.max_tokens
        view = picture.views[0] if picture.views else None
        height, width = (0, 0) if view is None else (view.height, view.width)
        tokens = (height // size) * (width // size)
        if view is not None and (height % size or width % size or not 1 <= tokens <= most):
            raise InvalidRequestError(
                FIELD,
                f"a view has {height} x {width} pixels: expected multiples of {size}, and at most {most} squares of "
                f"{size} x {size}",
            )
        check_single_view(picture, height, width, PictureShape(tokens))

    def example(self, num_tokens: int) -> Picture:
        size, tokens = self._tower.shape.token_size, max(1, min(num_tokens, self.shape.max_tokens))
        rows = max(each for each in range(1, math.isqrt(tokens) + 1) if tokens % each == 0)
        return gray_picture(PictureShape(tokens), rows * size, tokens // rows * size)


def _normalization(preprocessor: Mapping[str, Any]) -> Normalization:
    """Only rescaling, unless the preprocessor says otherwise."""
    return Normalization({"do_normalize": False} | dict(preprocessor), (0.0,) * CHANNELS, (1.0,) * CHANNELS)
