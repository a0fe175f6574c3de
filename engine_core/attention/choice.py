"""Which attention backend computes a model on CPU, and why."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_tiled import TorchTiledAttention
from engine_core.kernels.library import KernelsUnavailableError, load_kernels


def choose_attention(head_dim: int, dtype: torch.dtype) -> tuple[AttentionBackend, str]:
    """The fastest backend for heads of that size and type, and a description for a person."""
    if not NativeAttention.supports(head_dim, dtype):
        return TorchTiledAttention(), f"attention by torch: native kernels do not compute heads of {head_dim} {dtype}"
    try:
        kernels = load_kernels()
    except KernelsUnavailableError as error:
        return TorchTiledAttention(), f"attention by torch: {error}"
    return NativeAttention(kernels), f"attention by native kernels for {kernels.instruction_set}"
