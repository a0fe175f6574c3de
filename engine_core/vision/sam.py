"""The encoder of Segment Anything (https://arxiv.org/abs/2304.02643) with the two convolutions that DeepSeek-OCR adds:
each token of its output stands for 64 × 64 pixels.

Symbols in shapes: S tokens along a side, W width with the backend's padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine_core.activation import Activation
from engine_core.layers.convolution import ConvolutionShape
from engine_core.layers.part_factory import PartFactory
from engine_core.vision.attention import attend, widened
from engine_core.weights.features import Features

PATCH = 16
"""Pixels along a side of a patch."""
PIXELS_PER_TOKEN = 4 * PATCH
"""Along a side of the output."""
NECK = 256
"""Channels before the convolutions that reduce resolution."""
WINDOW = 14
"""Tokens along a side of a window."""
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class SamShape:
    """Sizes of the encoder."""

    image_size: int
    """Pixels along a side that positions are learned for."""
    width: int
    num_layers: int
    num_heads: int
    global_layers: tuple[int, ...]
    """Indices of the layers that attend to the whole picture; the others attend within windows."""
    downsample_channels: tuple[int, int]
    intermediate_size: int
    neck: int = NECK
    window: int = WINDOW

    @property
    def side(self) -> int:
        """Tokens along a side of the size that positions are learned for."""
        return self.image_size // PATCH


class SamEncoder:
    """Turns the pixels of a square view into features."""

    def __init__(self, shape: SamShape, prefix: str, parts: PartFactory) -> None:
        self.patch_embed = parts.convolution(
            f"{prefix}.patch_embed.proj", ConvolutionShape(3, shape.width, PATCH, PATCH, bias=True)
        )
        self._pos_embed = f"{prefix}.pos_embed"
        self.positions = parts.learned({self._pos_embed: (1, shape.side, shape.side, shape.width)})
        self.blocks = [SamLayer(shape, index, f"{prefix}.blocks.{index}", parts) for index in range(shape.num_layers)]
        channels = shape.neck
        self.neck = (
            parts.convolution(f"{prefix}.neck.0", ConvolutionShape(shape.width, channels, 1)),
            parts.layer_norm(f"{prefix}.neck.1", channels, _EPS),
            parts.convolution(f"{prefix}.neck.2", ConvolutionShape(channels, channels, 3, padding=1)),
            parts.layer_norm(f"{prefix}.neck.3", channels, _EPS),
        )
        widths = (channels, *shape.downsample_channels)
        self.reduce = [
            parts.convolution(f"{prefix}.net_{2 + i}", ConvolutionShape(widths[i], widths[i + 1], 3, 2, padding=1))
            for i in range(2)
        ]

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """[S, S, W] of ``pixels`` [64 · S, 64 · S, 3], each from −1 to 1."""
        hidden = self.patch_embed(pixels)
        side = hidden.shape[0]
        hidden = (hidden + resized(self.positions[self._pos_embed][0], side)).flatten(0, 1)
        for block in self.blocks:
            hidden = block(hidden, side)
        grid = hidden.view(side, side, -1)
        for convolution, norm in (self.neck[:2], self.neck[2:]):
            grid = norm(convolution(grid).flatten(0, 1)).view(side, side, -1)
        for convolution in self.reduce:
            grid = convolution(grid)
        return grid


class SamLayer:
    """Attention with learned relative positions, then a feed-forward block."""

    def __init__(self, shape: SamShape, index: int, prefix: str, parts: PartFactory) -> None:
        width = shape.width
        self.norm1 = parts.layer_norm(f"{prefix}.norm1", width, _EPS)
        self.attn = SamAttention(shape, f"{prefix}.attn", parts, is_global=index in shape.global_layers)
        self.norm2 = parts.layer_norm(f"{prefix}.norm2", width, _EPS)
        self.lin1 = parts.linear(f"{prefix}.mlp.lin1", width, shape.intermediate_size, bias=True)
        self.lin2 = parts.linear(f"{prefix}.mlp.lin2", shape.intermediate_size, width, bias=True)
        self._activate = parts.backend.activate

    def __call__(self, hidden: torch.Tensor, side: int) -> torch.Tensor:
        """[S · S, W] of ``hidden`` [S · S, W]."""
        hidden = self.attn(self.norm1(hidden), side, hidden)
        inner = self._activate(self.lin1(self.norm2(hidden)), Activation.GELU)
        return self.lin2(inner, hidden)


class SamAttention:
    """Attention over the whole picture, or within windows of it."""

    def __init__(self, shape: SamShape, prefix: str, parts: PartFactory, *, is_global: bool) -> None:
        size = shape.width // shape.num_heads
        self.qkv = parts.linear(f"{prefix}.qkv", shape.width, Features(3 * shape.num_heads, size), bias=True)
        self.proj = parts.linear(f"{prefix}.proj", Features(shape.num_heads, size), shape.width, bias=True)
        self._window = 0 if is_global else shape.window
        rows = 2 * (self._window or shape.side) - 1
        self._names = (f"{prefix}.rel_pos_h", f"{prefix}.rel_pos_w")
        self.relative = parts.learned(dict.fromkeys(self._names, (rows, size)))
        self._num_heads = shape.num_heads
        self._scale = size**-0.5

    def __call__(self, x: torch.Tensor, side: int, residual: torch.Tensor) -> torch.Tensor:
        """[S · S, W] of ``x`` [S · S, W], plus ``residual``."""
        windows = _windows(x, side, self._window) if self._window else x[None]
        count, tokens, width = windows.shape
        heads = self.qkv(windows.reshape(-1, width)).view(count, tokens, 3, self._num_heads, -1)
        rows = self._attended(*widened(heads.permute(2, 0, 3, 1, 4)).contiguous())
        joined = _joined(rows, side, self._window) if self._window else rows[0]
        return self.proj(joined.to(x.dtype), residual)

    def _attended(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[B, N, heads · D], each [B, heads, N, D] of a square of N tokens."""
        count, num_heads, tokens, _ = queries.shape
        side = self._window or int(tokens**0.5)
        square = queries.view(count * num_heads, side, side, -1)
        tables = [relative_positions(self.relative[name], side).to(queries.dtype) for name in self._names]
        of_rows = torch.einsum("bhwc,hkc->bhwk", square, tables[0]).reshape(count, num_heads, tokens, side, 1)
        of_columns = torch.einsum("bhwc,wkc->bhwk", square, tables[1]).reshape(count, num_heads, tokens, 1, side)

        def bias_of(first: int, last: int) -> torch.Tensor:
            return (of_rows[:, :, first:last] + of_columns[:, :, first:last]).flatten(3)

        return attend(queries, keys, values, self._scale, bias_of)


def _windows(x: torch.Tensor, side: int, window: int) -> torch.Tensor:
    """[windows, window², W] of ``x`` [side², W], with zeros behind the last rows and columns."""
    across = -(-side // window)
    missing = across * window - side
    square = functional.pad(x.view(side, side, -1), (0, 0, 0, missing, 0, missing))
    return square.view(across, window, across, window, -1).transpose(1, 2).reshape(across**2, window**2, -1)


def _joined(windows: torch.Tensor, side: int, window: int) -> torch.Tensor:
    """The reverse of ``_windows``: [side², W]."""
    across = -(-side // window)
    square = (
        windows.view(across, across, window, window, -1).transpose(1, 2).reshape(across * window, -1, windows.shape[2])
    )
    return square[:side, :side].flatten(0, 1)


def relative_positions(table: torch.Tensor, side: int) -> torch.Tensor:
    """[side, side, D]: the entry of each query's distance to each key, of ``table`` [2 · learned side − 1, D]."""
    rows = 2 * side - 1
    if len(table) != rows:
        wide = functional.interpolate(table.float().t()[None], size=rows, mode="linear")
        table = wide[0].t().to(table.dtype)
    places = torch.arange(side, device=table.device)
    return table[places[:, None] - places[None] + side - 1]


def resized(positions: torch.Tensor, side: int) -> torch.Tensor:
    """``positions`` [learned side, learned side, W], resized to [side, side, W]."""
    if len(positions) == side:
        return positions
    wide = positions.float().permute(2, 0, 1)[None]
    wide = functional.interpolate(wide, size=(side, side), mode="bicubic", align_corners=False, antialias=True)
    return wide[0].permute(1, 2, 0).to(positions.dtype)
