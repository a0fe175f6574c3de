"""Which layers compute a model on CPU, and why."""

from __future__ import annotations

import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import Int8Kernels, KernelsUnavailableError, load_int8_kernels, load_kernels
from engine_core.layers.base import LayerFactory
from engine_core.layers.native import NativeLayerFactory
from engine_core.layers.torch_layers import TorchLayerFactory


def choose_layers(
    widths: tuple[int, ...], head_dim: int, dtype: torch.dtype, quantization: str | None
) -> tuple[LayerFactory, str]:
    """The fastest layers for rows of those widths and heads of that size and type, and a description for a person.

    ``quantization`` is as in ``ModelConfig``. Raises ``ConfigError`` where it cannot be computed.
    """
    int8_kernels = None if quantization is None else _int8_kernels(quantization)
    rounded = (
        "" if int8_kernels is None else f", 8-bit linear layers by native kernels for {int8_kernels.instruction_set}"
    )
    try:
        if not NativeLayerFactory.supports(widths, head_dim, dtype):
            raise KernelsUnavailableError(
                f"native kernels do not compute rows of {widths} and heads of {head_dim} {dtype}"
            )
        kernels = load_kernels()
    except KernelsUnavailableError as error:
        return TorchLayerFactory(int8_kernels), f"layers by torch: {error}{rounded}"
    return NativeLayerFactory(kernels, int8_kernels), f"layers by native kernels for {kernels.instruction_set}{rounded}"


def _int8_kernels(quantization: str) -> Int8Kernels:
    try:
        return load_int8_kernels()
    except KernelsUnavailableError as error:
        raise ConfigError("quantization", quantization, f"nothing, because it needs native kernels: {error}") from error
