"""Experts stored in MXFP4, and their expansion to the model's type when they are loaded.

MXFP4 (OCP Microscaling Formats, version 1.0) keeps 32 numbers along a row in 16 bytes and one scale: a byte holds two
numbers of sign, two bits of exponent and one of mantissa, the first in its low half; the scale is a power of two, kept
as its exponent + 127. Every product has at most two significant bits, so bfloat16 and float32 hold it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from engine_core.layers.fused_moe import ExpertTensors, own_biases
from engine_core.layers.weights import Weights
from engine_core.ops.base import ExpertsShape, ExpertsShard, ExpertWeights
from engine_core.quantization.base import QuantizationConfig, QuantMethod, Unquantized

SCALED_TOGETHER = 32
"""Numbers along a row that have one scale."""
_BLOCK_BYTES = SCALED_TOGETHER // 2
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Mxfp4Config(QuantizationConfig):
    """Experts alone are quantized."""

    fields: Mapping[str, Any]

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return Unquantized()

    def describe(self) -> str:
        return "experts in MXFP4"


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(ExpertTensors):
    """All experts in blocks [E, N, K / 32, 16] and scales [E, N, K / 32] of bytes, with biases; the rows of gates and
    ups take turns.
    """

    prefix: str
    dtype: torch.dtype
    """What they are expanded to."""

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        gate_up, down = (experts, 2 * inner, hidden // SCALED_TOGETHER), (experts, hidden, inner // SCALED_TOGETHER)
        return {
            f"{self.prefix}.gate_up_proj_blocks": (*gate_up, _BLOCK_BYTES),
            f"{self.prefix}.gate_up_proj_scales": gate_up,
            f"{self.prefix}.gate_up_proj_bias": (experts, 2 * inner),
            f"{self.prefix}.down_proj_blocks": (*down, _BLOCK_BYTES),
            f"{self.prefix}.down_proj_scales": down,
            f"{self.prefix}.down_proj_bias": (experts, hidden),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        gate_up_biases = weights.take_float32(f"{self.prefix}.gate_up_proj_bias")
        down_biases = weights.take_float32(f"{self.prefix}.down_proj_bias")
        for expert in shard.experts:
            biases = own_biases(gate_up_biases[expert], down_biases[expert], shard)
            yield ExpertWeights(self._tensors(weights, expert, shard), biases)

    def _tensors(self, weights: Weights, expert: int, shard: ExpertsShard) -> Iterator[torch.Tensor]:
        inner = shard.inner
        rows = self._expanded(weights, "gate_up_proj", expert, range(2 * inner.start, 2 * inner.stop))
        yield from (rows[::2], rows[1::2])
        yield self._expanded(weights, "down_proj", expert, shard.hidden)

    def _expanded(self, weights: Weights, name: str, expert: int, rows: range) -> torch.Tensor:
        blocks, scales = (
            weights.take_bytes_row(f"{self.prefix}.{name}_{stored}", expert, rows) for stored in ("blocks", "scales")
        )
        return expand(blocks, scales).to(self.dtype)


def expand(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[N, K] in bfloat16 from bytes: blocks [N, K / 32, 16] and scales [N, K / 32]."""
    pairs, powers = _tables(blocks.device)
    return pairs[blocks.int()].view(torch.bfloat16).mul_(powers[scales.int()][..., None]).flatten(1)


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What a byte [256] means in bfloat16: in a block, its two numbers, here as one int32; as a scale, its power."""
    numbers = torch.tensor([*_MAGNITUDES, *(-size for size in _MAGNITUDES)], dtype=torch.bfloat16)
    byte = torch.arange(256)
    pairs = torch.stack([numbers[byte & 15], numbers[byte >> 4]], 1).view(torch.int32).flatten()
    return pairs.to(device), torch.exp2(byte.double() - 127).bfloat16().to(device)
