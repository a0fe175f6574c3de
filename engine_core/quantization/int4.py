"""Linear layers, the head and experts with weights rounded to 4 bits when loaded; inputs stay in the model's type
(W4A16).

A group of neighbouring inputs of an output has a scale and a minimum, each in 8 bits, relative to an outer one that
256 inputs share, and 16 levels, closer together where numbers are denser: kernels/cpu/quantized/int4_round.h fits them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsOp, ExpertsSplit, LinearOp, OpsBackend
from engine_core.quantization.base import QuantMethod, take_bias, take_weight
from engine_core.quantization.stored_experts import ExpertFormats
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard, ExpertWeights, QuantizedExpertWeights
from engine_core.weights.features import LinearShape
from engine_core.weights.quantized_weight import Offset, QuantFormat, QuantizedWeight
from engine_core.weights.source import Weights

_LEVELS = (3.0, 10.0, 17.0, 24.0, 32.0, 40.0, 51.0, 63.0)
"""``kInt4Levels`` of kernels/cpu/quantized/int4_round.h."""
CODEBOOK = (*(-level for level in reversed(_LEVELS)), *_LEVELS)
OUTER_SIZE = 256
DEFAULT_GROUP_SIZE = 32
_ROUNDED_TOGETHER = 2**22
"""Numbers."""


class Int4(QuantMethod):
    """Experts are rounded without their padding, everything else with it."""

    def __init__(self, group_size: int, kernels: Kernels | None) -> None:
        """Groups of 32, 64 or 128 inputs; ``kernels`` is None if weights are only counted, not loaded."""
        self.format = QuantFormat(CODEBOOK, group_size, torch.bfloat16, OUTER_SIZE, Offset.MINIMUM)
        self._kernels = kernels

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        weight = self.format.nbytes(shape.outputs.count, shape.inputs.count)
        return weight + (shape.outputs.count * itemsize if shape.bias else 0)

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        weight = take_weight(shape, weights, backend)
        outputs, inputs = weight.shape
        return backend.quantized_linear(self.format, outputs, inputs, weights.dtype, self.rounded(weight), bias)

    def expert_bytes(
        self, shape: ExpertsShape, tensors: ExpertTensors, itemsize: int, shard: ExpertsShard | None = None
    ) -> int:
        return ExpertFormats(self.format, self.format).nbytes(shape, shard or shape.whole)

    def load_experts(
        self,
        shape: ExpertsShape,
        tensors: ExpertTensors,
        weights: Weights,
        backend: OpsBackend,
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        read = tensors.read(weights, shape, shape.whole if split is None else split.own)
        experts = map(self._rounded_expert, read)
        return backend.quantized_experts(shape, self.format, self.format, weights.dtype, experts, split)

    def _rounded_expert(self, expert: ExpertWeights) -> QuantizedExpertWeights:
        return QuantizedExpertWeights(map(self.rounded, expert.tensors), expert.biases)

    def rounded(self, weight: torch.Tensor) -> Iterator[QuantizedWeight]:
        """Round ``weight`` [N, K] on CPU, a few rows at a time. If a number is not finite, its outer group of 256
        becomes NaN.
        """
        assert self._kernels is not None
        inputs = weight.shape[1]
        groups, outer = -(-inputs // self.format.group_size), -(-inputs // OUTER_SIZE)
        for part in torch.split(weight, max(1, _ROUNDED_TOGETHER // inputs)):
            rows = part.contiguous()
            codes = torch.empty(rows.shape, dtype=torch.uint8)
            scales, minima = torch.empty(2, len(rows), groups, dtype=torch.int8)
            outer_scales, outer_minima = torch.empty(2, len(rows), outer, dtype=torch.bfloat16)
            self._kernels.int4_round.run(
                input=rows,
                codes=codes,
                scales=scales,
                outer_scales=outer_scales,
                minima=minima,
                outer_minima=outer_minima,
                rows=len(rows),
                in_features=inputs,
                group_size=self.format.group_size,
                input_type=NUMBER_TYPES[rows.dtype],
            )
            yield QuantizedWeight(self.format, codes, scales, outer_scales, None, minima, outer_minima)
