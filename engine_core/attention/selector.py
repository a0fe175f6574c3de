"""Which attention backend computes a model on CPU, and why."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError, load_kernels_for


def choose_attention(
    head_dim: int,
    dtype: torch.dtype,
    asked: str | None = None,
    library: KernelLibrary | None = None,
    cache_dtype: str = "auto",
) -> tuple[AttentionBackend, str]:
    """The fastest backend for heads of that size and type, or the one ``asked`` for, and its description for a person.

    ``cache_dtype``: as in ``KVCacheSpec``. Raises ``ConfigError`` if it or the backend ``asked`` for is unusable here.
    """
    if asked in ("triton", "varlen", "flashinfer"):
        raise ConfigError("attention_backend", asked, "native or torch on a CPU")
    if asked == "torch":
        return _by_torch("attention by torch, as asked for", cache_dtype)
    try:
        kernels = load_kernels_for(head_dim, dtype, library)
    except KernelsUnavailableError as error:
        why = f"attention by torch: {error}"
        if asked == "native":
            raise ConfigError("attention_backend", asked, f"torch, because: {why}") from error
        return _by_torch(why, cache_dtype)
    kept = "" if cache_dtype == "auto" else f", KV cache in {cache_dtype}"
    return NativeAttention(kernels, cache_dtype), f"attention by native kernels for {kernels.instruction_set}{kept}"


def _by_torch(why: str, cache_dtype: str) -> tuple[AttentionBackend, str]:
    if cache_dtype != "auto":
        raise ConfigError("kv_cache_dtype", cache_dtype, f"auto without native kernels ({why})")
    return TorchAttention(), why
