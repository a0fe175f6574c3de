"""Which backend computes a model's ops on a CPU, and why."""

from __future__ import annotations

import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import (
    KernelLibrary,
    KernelsUnavailableError,
    load_int8_kernels,
    load_kernels_for,
)
from engine_core.ops.base import OpsBackend
from engine_core.ops.int8_activations import Int8Activations
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend


def choose_ops(
    head_dim: int, dtype: torch.dtype, library: KernelLibrary | None = None, *, int8_activations: bool = False
) -> tuple[OpsBackend, str]:
    """The fastest backend for heads of this size and type, and its description for a person.

    Raises ``ConfigError`` for ``int8_activations`` without native kernels.
    """
    try:
        kernels = load_kernels_for(head_dim, dtype, library)
        rounding = Int8Activations(load_int8_kernels(library=library)) if int8_activations else None
    except KernelsUnavailableError as error:
        if int8_activations:
            accepted = f"False, because it needs native kernels: {error}"
            raise ConfigError("int8_activations", True, accepted) from error
        return TorchBackend(), f"layers by torch: {error}"
    chosen = f"layers by native kernels for {kernels.instruction_set}"
    if rounding is not None:
        chosen += f", those with inputs in 8 bits for {rounding.kernels.instruction_set}"
    return NativeBackend(kernels, rounding), chosen
