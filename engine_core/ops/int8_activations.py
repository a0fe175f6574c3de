"""Linear layers and experts of integer codes that round their inputs to 8 bits (``--int8-activations``).

Each call rounds a row's inputs, with one scale per block of 128 or of as many as fit the weight's groups. The products
of a group are summed exactly, and scaled into one chain (int8_activations_multiply.h in cpu/quantized). So a row's
result has the same bits whatever the other rows, the threads and the instruction set.
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
"""Greatest difference in a 4-bit codebook of integers: the sum of two products must fit into 16 bits."""


def has_integer_codes(kept: QuantFormat) -> bool:
    """Whether the kernels can multiply the codes: they are integers, or (4 bits without zeros) multiples of ½."""
    if kept.bits > 4:
        return kept.is_linear and -128 <= kept.codebook[0] <= 0
    unit = 1 if kept.offset is Offset.ZERO or all(number.is_integer() for number in kept.codebook) else 2
    integers = [unit * number for number in kept.codebook]
    is_narrow = max(integers) - min(integers) <= _MOST_SPREAD and max(map(abs, integers)) <= _MOST_SPREAD
    return is_narrow and all(number.is_integer() for number in integers)


class Int8Activations:
    """Which layers of a model round their inputs."""

    def __init__(self, kernels: Kernels) -> None:
        """``kernels``: the 8-bit ones (``load_int8_kernels``)."""
        self.kernels = kernels
        self._rounding = self._others = 0

    def takes(self, *formats: QuantFormat) -> bool:
        """Whether a new layer (or a layer's experts) of these formats rounds its inputs. Counts the layer."""
        takes = all(map(has_integer_codes, formats))
        self._rounding += takes
        self._others += not takes
        return takes

    def describe(self) -> str:
        """For a person. Raises ``ConfigError`` if no layer rounds its inputs."""
        if not self._rounding:
            accepted = "False, because no layer of the checkpoint keeps codes that are integers"
            raise ConfigError("int8_activations", True, accepted)
        text = f"inputs of {self._rounding} layers rounded to 8 bits"
        return f"{text}, those of {self._others} others kept" if self._others else text


class Int8ActivationsLinear(NativeQuantizedLinear):
    """If an input of a row is infinite or NaN, that row's result is NaN, and no other's."""

    def __init__(
        self,
        kernels: Kernels,
        rounding: Kernels,
        weights: PackedQuantizedWeights,
        dtype: torch.dtype,
        bias: torch.Tensor | None,
    ) -> None:
        """``weights`` holds one weight, of a format that ``has_integer_codes``."""
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
        """Both formats must satisfy ``has_integer_codes``."""
        super().__init__(kernels, shape, gate_up, down, dtype, split)
        self._kernel = rounding.quantized_int8_experts
        self._factor_type = torch.float32
