"""Linear layers and experts of integer codes that round their inputs to 8 bits (``--int8-activations``).

A row's inputs are rounded in every call, with one scale for 128 of them or for as many as fit the weight's groups. The
products of a group are summed exactly, and scaled into one chain (int8_activations_multiply.h in cpu/quantized). So a
row's result has the same bits whatever the other rows, the threads and the instruction set.
"""

from __future__ import annotations

import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsSplit
from engine_core.ops.native_quantized import NativeQuantizedLinear, PackedQuantizedWeights
from engine_core.ops.native_quantized_experts import NativeQuantizedExperts
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.quantized_weight import Offset, QuantFormat

_MOST_SPREAD = 127
"""Between the integers of a codebook of 16: the sum of two products must fit into 16 bits."""


def has_integer_codes(kept: QuantFormat) -> bool:
    """Whether the kernels can multiply the codes: they stand for integers, or, of 4 bits without zeros, for halves."""
    if kept.bits == 8:
        return kept.is_linear and -128 <= kept.codebook[0] <= 0
    unit = 1 if kept.offset is Offset.ZERO or all(number.is_integer() for number in kept.codebook) else 2
    integers = [unit * number for number in kept.codebook]
    is_narrow = max(integers) - min(integers) <= _MOST_SPREAD and max(map(abs, integers)) <= _MOST_SPREAD
    return is_narrow and all(number.is_integer() for number in integers)


class Int8Activations:
    """Which layers of a model round their inputs."""

    def __init__(self, kernels: Kernels) -> None:
        """``kernels`` are those of 8 bits (``load_int8_kernels``)."""
        self.kernels = kernels
        self._rounding = self._others = 0

    def takes(self, *formats: QuantFormat) -> bool:
        """Whether a layer, or a layer's experts, of these formats, which are being made, round their inputs."""
        takes = all(map(has_integer_codes, formats))
        self._rounding += takes
        self._others += not takes
        return takes

    def describe(self) -> str:
        """For a person. Raises ``ConfigError`` if no layer that was made rounds its inputs."""
        if not self._rounding:
            accepted = "False, because no layer of the checkpoint keeps codes that are integers"
            raise ConfigError("int8_activations", True, accepted)
        text = f"inputs of {self._rounding} layers rounded to 8 bits"
        return f"{text}, those of {self._others} others kept" if self._others else text


class Int8ActivationsLinear(NativeQuantizedLinear):
    """A row's result is NaN where an input is infinite or NaN, and that row's alone."""

    def __init__(
        self,
        kernels: Kernels,
        rounding: Kernels,
        weights: PackedQuantizedWeights,
        dtype: torch.dtype,
        bias: torch.Tensor | None,
    ) -> None:
        """Of the one weight in ``weights``, of a format that ``has_integer_codes``."""
        super().__init__(kernels, weights, dtype, bias)
        self._linear, self._argmax = rounding.quantized_int8_linear, rounding.quantized_int8_argmax


class Int8ActivationsExperts(NativeQuantizedExperts):
    """Both products round their inputs."""

    def __init__(
        self,
        kernels: Kernels,
        rounding: Kernels,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        split: ExpertsSplit | None = None,
    ) -> None:
        """Of formats that have integer codes (``has_integer_codes``)."""
        super().__init__(kernels, shape, gate_up, down, dtype, split)
        self._kernel = rounding.quantized_int8_experts
        self._factor_type = torch.float32
