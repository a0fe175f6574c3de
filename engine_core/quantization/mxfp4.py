"""Experts stored in MXFP4, and kept in it.

MXFP4 (OCP Microscaling Formats, version 1.0) stores 32 numbers along a row in 16 bytes and one scale. A byte holds two
numbers, the first in its low half: a sign, two bits of exponent and one of mantissa. The scale is a power of two,
stored as its exponent + 127; 255 stands for NaN. bfloat16 has all of these powers, 2⁻¹²⁷ as a subnormal number. Kernels
multiply by them in float32, so models in float16 have them, too; but weights expanded to float16 become infinite above
65504, and zero below 2⁻²⁵.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.ops.base import ExpertsOp, ExpertsSplit, OpsBackend
from engine_core.quantization.base import QuantizationConfig, QuantMethod, Unquantized
from engine_core.quantization.packing import nibbles_of, take, take_powers
from engine_core.quantization.stored_experts import ExpertFormats
from engine_core.weights.expert_tensors import ExpertTensors, InterleavedExperts, own_biases
from engine_core.weights.experts import ExpertsShape, ExpertsShard, QuantizedExpertWeights
from engine_core.weights.quantized_weight import FP4, QuantFormat, QuantizedWeight
from engine_core.weights.source import Weights

MXFP4 = QuantFormat(FP4, group_size=32, scale_dtype=torch.bfloat16)
_BLOCK_BYTES = MXFP4.group_size // 2


@dataclass(frozen=True, slots=True)
class Mxfp4Config(QuantizationConfig):
    """Only experts are quantized."""

    fields: Mapping[str, Any]

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return Mxfp4()

    def describe(self) -> str:
        return "MXFP4 for experts"


class Mxfp4(Unquantized):
    """Experts in blocks [E, N, K / 32, 16] and scales [E, N, K / 32] of bytes, with biases; rows of gates and ups
    alternate. Linear layers are in the model's type.
    """

    def expert_tensors(self, shape: ExpertsShape, tensors: ExpertTensors) -> dict[str, tuple[int, ...]]:
        if not isinstance(tensors, InterleavedExperts):
            raise UnsupportedModelError(
                f"{tensors.prefix}: MXFP4 is not supported for experts of this architecture, only for those of gpt-oss"
            )
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        found: dict[str, tuple[int, ...]] = {}
        for name, outputs, inputs in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            if inputs % MXFP4.group_size:
                raise CheckpointError(
                    f"{tensors.prefix}.{name} has {inputs} inputs, which is not usable: expected a multiple of "
                    f"{MXFP4.group_size} with MXFP4"
                )
            groups = (experts, outputs, inputs // MXFP4.group_size)
            found[f"{tensors.prefix}.{name}_blocks"] = (*groups, _BLOCK_BYTES)
            found[f"{tensors.prefix}.{name}_scales"] = groups
            found[f"{tensors.prefix}.{name}_bias"] = (experts, outputs)
        return found

    def expert_bytes(
        self, shape: ExpertsShape, tensors: ExpertTensors, itemsize: int, shard: ExpertsShard | None = None
    ) -> int:
        return ExpertFormats(MXFP4, MXFP4).nbytes(shape, shard or shape.whole)

    def load_experts(
        self,
        shape: ExpertsShape,
        tensors: ExpertTensors,
        weights: Weights,
        backend: OpsBackend,
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        shard = shape.whole if split is None else split.own
        experts = _experts(tensors, shape, weights, shard)
        return backend.quantized_experts(shape, MXFP4, MXFP4, weights.dtype, experts, split)


def _experts(
    tensors: ExpertTensors, shape: ExpertsShape, weights: Weights, shard: ExpertsShard
) -> Iterator[QuantizedExpertWeights]:
    of_gate_up, of_down = (weights.take_float32(f"{tensors.prefix}.{name}_proj_bias") for name in ("gate_up", "down"))
    for number, expert in zip(shard.experts, tensors.separate.projections(shape, shard), strict=True):
        parts = _read(tensors.prefix, number, shard, weights)
        if weights.make_quantized is not None:
            parts = map(weights.make_quantized, repeat(MXFP4), expert, shape.inputs)
        yield QuantizedExpertWeights(parts, own_biases(of_gate_up[number], of_down[number], shard))


def _read(prefix: str, expert: int, shard: ExpertsShard, weights: Weights) -> Iterator[Iterable[QuantizedWeight]]:
    gates = slice(2 * shard.inner.start, 2 * shard.inner.stop, 2)
    ups = slice(gates.start + 1, gates.stop, 2)
    for name, rows in (("gate_up", gates), ("gate_up", ups), ("down", slice(shard.hidden.start, shard.hidden.stop))):
        scales = take_powers(weights, f"{prefix}.{name}_proj_scales", expert, rows)
        blocks = take(weights, f"{prefix}.{name}_proj_blocks", (torch.uint8,), expert, rows)
        yield [QuantizedWeight(MXFP4, nibbles_of(blocks.flatten(1)), scales)]
