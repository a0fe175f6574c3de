"""Which kind of linear layer computes a model's projections."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelsUnavailableError, load_int8_kernels
from engine_core.layers.linear import Linear
from engine_core.layers.quantized import Int8Linear

LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear | Int8Linear]
"""Makes a layer of a weight [N, K] and a bias [N], both of which the caller lets go of."""


def choose_linear(quantization: str | None) -> LinearFactory:
    """The layers for a value of the option ``quantization``. Raises ``ConfigError`` where they cannot be computed."""
    if quantization is None:
        return Linear
    try:
        kernels = load_int8_kernels()
    except KernelsUnavailableError as error:
        raise ConfigError("quantization", quantization, f"nothing, because it needs native kernels: {error}") from error
    return lambda weight, bias: Int8Linear(weight, bias, kernels)
