"""Which attention backend computes a model on CPU, and why."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError, load_kernels_for


def choose_attention(
    head_dim: int, dtype: torch.dtype, asked: str | None = None, library: KernelLibrary | None = None
) -> tuple[AttentionBackend, str]:
    """The fastest backend for heads of that size and type, or the one ``asked`` for; and a description for a person.

    Raises ``ConfigError`` if the backend ``asked`` for cannot be used here.
    """
    if asked in ("triton", "varlen", "flashinfer"):
        raise ConfigError("attention_backend", asked, "native or torch on a CPU")
    if asked == "torch":
        return TorchAttention(), "attention by torch, as asked for"
    try:
        kernels = load_kernels_for(head_dim, dtype, library)
    except KernelsUnavailableError as error:
        why = f"attention by torch: {error}"
        if asked == "native":
            raise ConfigError("attention_backend", asked, f"torch, because: {why}") from error
        return TorchAttention(), why
    return NativeAttention(kernels), f"attention by native kernels for {kernels.instruction_set}"
