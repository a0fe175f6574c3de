"""Chooses how a model's linear layers are quantized: by an option, or as they are stored."""

from __future__ import annotations

from engine_core.errors import ConfigError
from engine_core.kernels.library import (
    KernelLibrary,
    Kernels,
    KernelsUnavailableError,
    load_int8_kernels,
    load_kernels,
)
from engine_core.quantization.base import OneMethod, QuantizationConfig, QuantMethod
from engine_core.quantization.int4 import DEFAULT_GROUP_SIZE, Int4
from engine_core.quantization.int8 import Int8


def outline_quantization(
    quantization: str | None, stored: QuantizationConfig | None = None, group_size: int | None = None
) -> QuantizationConfig | None:
    """As ``choose_quantization``, where weights are only counted."""
    return stored if quantization is None else OneMethod(_rounding(quantization, group_size, None))


def choose_quantization(
    quantization: str | None,
    stored: QuantizationConfig | None = None,
    library: KernelLibrary | None = None,
    group_size: int | None = None,
) -> QuantizationConfig | None:
    """How layers are quantized: by ``ModelConfig.quantization``, or else as ``stored`` in the checkpoint.

    ``group_size`` is that of int4; None: its default. Raises ``ConfigError`` without native kernels for the option.
    """
    if quantization is None:
        return None if stored is None else _read_fast(stored, library or KernelLibrary())
    try:
        kernels = (load_int8_kernels if quantization == "int8" else load_kernels)(library=library)
    except KernelsUnavailableError as error:
        raise ConfigError(
            "quantization", quantization, f"no value, because it needs native kernels: {error}"
        ) from error
    method = _rounding(quantization, group_size, kernels)
    return OneMethod(method, f"{quantization} layers by native kernels for {kernels.instruction_set}")


def _read_fast(stored: QuantizationConfig, library: KernelLibrary) -> QuantizationConfig:
    """With native kernels if they are already built: building them takes longer than reading without."""
    try:
        return stored.read_by(load_kernels(library=library)) if library.is_built() else stored
    except KernelsUnavailableError:
        return stored


def _rounding(quantization: str, group_size: int | None, kernels: Kernels | None) -> QuantMethod:
    """Without ``kernels``, weights are only counted."""
    return Int8(kernels) if quantization == "int8" else Int4(group_size or DEFAULT_GROUP_SIZE, kernels)
