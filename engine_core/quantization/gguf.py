"""Layers of GGUF files: each weight has its own type, and stays in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.kernels.library import Kernels
from engine_core.quantization.base import QuantizationConfig, QuantMethod
from engine_core.quantization.gguf_blocks import BLOCK_TYPES
from engine_core.quantization.stored import StoredMethod
from engine_core.weights.features import LinearShape
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

_FLOAT_TYPES = ("F32", "F16", "BF16")
_READ_AT_ONCE = 2**21
"""Approximate numbers per read: more would not stay in a processor's caches, far fewer would cost more calls."""


@dataclass(frozen=True, slots=True)
class GgufConfig(QuantizationConfig):
    """Made from a file's metadata, as GGUF has no ``quantization_config``."""

    types: Mapping[str, str]
    """The type of each tensor, by its name in transformers' format."""
    kernels: Kernels | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> GgufConfig:
        """Raises ``UnsupportedModelError`` for an unsupported type."""
        types: Mapping[str, str] = fields["types"]
        for name, kept in types.items():
            if kept not in BLOCK_TYPES and kept not in _FLOAT_TYPES:
                raise UnsupportedModelError(
                    f"{name} is of type {kept}, which is not supported: choose a file with "
                    f"{', '.join([*BLOCK_TYPES, *_FLOAT_TYPES])}, such as one whose name ends in Q4_K_M or Q4_0"
                )
        return cls(types)

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return GgufMethod(self.types, self.kernels)

    def read_by(self, kernels: Kernels) -> GgufConfig:
        return replace(self, kernels=kernels)

    def describe(self) -> str:
        counts = Counter(kept for kept in self.types.values() if kept in BLOCK_TYPES)
        return f"GGUF's {', '.join(name for name, _ in counts.most_common())}" if counts else "GGUF, not quantized"


@dataclass(frozen=True, slots=True)
class GgufMethod(StoredMethod):
    """``Weights.take_stored`` gives rows of blocks [N, bytes]."""

    types: Mapping[str, str]
    kernels: Kernels | None
    separates_experts: ClassVar[bool] = True

    def keeps_table(self, shape: LinearShape) -> bool:
        return all(self.format(piece.name, shape.inputs.count) is not None for piece in shape.pieces)

    def format(self, name: str, inputs: int) -> QuantFormat | None:
        block = BLOCK_TYPES.get(self.types.get(f"{name}.weight", ""))
        return None if block is None else block.format

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        name = f"{piece.name}.weight"
        block, step = BLOCK_TYPES[self.types[name]], max(1, _READ_AT_ONCE // inputs)
        for first in range(piece.rows.start, piece.rows.stop, step):
            rows = weights.take_stored(name, slice(first, min(first + step, piece.rows.stop)))
            weight = block.weight(rows, self.kernels)
            _require_finite(name, weight)
            yield weight


def _require_finite(name: str, weight: QuantizedWeight) -> None:
    """Raise ``CheckpointError`` unless (outer) scales and minima are finite; inner ones are integers."""
    outer = weight.outer_scales, weight.outer_minima
    for numbers in outer if weight.outer_scales is not None else (weight.scales, weight.minima):
        if numbers is not None and not math.isfinite(numbers.sum(dtype=torch.float64)):  # one pass, unlike isfinite
            raise CheckpointError(f"{name} has a scale or a minimum that is infinite or NaN: download the file again")
