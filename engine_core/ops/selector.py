"""Which backend computes a model's ops on CPU, and why; and how its linear layers are quantized."""

from __future__ import annotations

import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError, load_int8_kernels, load_kernels_for
from engine_core.ops.base import OpsBackend
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import OneMethod, QuantizationConfig
from engine_core.quantization.int8 import Int8


def choose_ops(head_dim: int, dtype: torch.dtype, library: KernelLibrary | None = None) -> tuple[OpsBackend, str]:
    """The fastest backend for heads of that size and type, and its description for a person."""
    try:
        kernels = load_kernels_for(head_dim, dtype, library)
    except KernelsUnavailableError as error:
        return TorchBackend(), f"layers by torch: {error}"
    return NativeBackend(kernels), f"layers by native kernels for {kernels.instruction_set}"


def outline_quantization(
    quantization: str | None, stored: QuantizationConfig | None = None
) -> QuantizationConfig | None:
    """As ``choose_quantization``, where weights are only counted."""
    return stored if quantization is None else OneMethod(Int8(None))


def choose_quantization(
    quantization: str | None, stored: QuantizationConfig | None = None, library: KernelLibrary | None = None
) -> QuantizationConfig | None:
    """How layers are quantized: as ``ModelConfig.quantization`` says, or else as they are ``stored`` in the checkpoint.

    Raises ``ConfigError`` where it cannot be computed.
    """
    if quantization is None:
        return stored
    try:
        kernels = load_int8_kernels(library=library)
    except KernelsUnavailableError as error:
        raise ConfigError(
            "quantization", quantization, f"no value, because it needs native kernels: {error}"
        ) from error
    return OneMethod(Int8(kernels), f"8-bit linear layers by native kernels for {kernels.instruction_set}")
