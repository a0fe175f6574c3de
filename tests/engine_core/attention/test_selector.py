"""The backend is chosen by what the machine and the model allow, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.attention.selector import choose_attention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError, load_kernels
from engine_core.kv_cache_interface import AttentionSpec


def test_native_kernels_where_they_can_compute_the_model() -> None:
    backend, why = choose_attention(64, torch.bfloat16)
    assert isinstance(backend, NativeAttention)
    assert why == f"attention by native kernels for {load_kernels().instruction_set}"
    assert isinstance(choose_attention(24, torch.bfloat16)[0], NativeAttention)
    backend, why = choose_attention(1040, torch.bfloat16)
    assert isinstance(backend, TorchAttention)
    assert "head_dim up to 1024; the model has bfloat16 and head_dim 1040" in why


def test_torch_where_no_library_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backend, why = choose_attention(64, torch.bfloat16, library=KernelLibrary(package=tmp_path))
    assert isinstance(backend, TorchAttention)
    assert why == "attention by torch: the native kernels cannot be built: g++ is not installed"


def test_numerics_name_what_decides_bits() -> None:
    def numerics(block_size: int, dtype: torch.dtype, instruction_set: str | None = None) -> str:
        kernels = load_kernels(instruction_set)
        return NativeAttention(kernels).numerics(KVCacheSpec((AttentionSpec(1, 16),), block_size, dtype))

    same = {numerics(size, torch.bfloat16) for size in (2, 4, 8, 16, 48, 128)} | {numerics(1, torch.float32)}
    assert len(same) == 1
    other = {numerics(size, torch.bfloat16) for size in (1, 3, 24, 40)} | {numerics(16, torch.float32, "portable")}
    assert len(same | other) == 6


def test_an_instruction_set_that_nobody_knows_is_refused() -> None:
    assert load_kernels("portable").instruction_set == "portable"
    with pytest.raises(KernelsUnavailableError, match="no native kernels for avx3 on this processor"):
        load_kernels("avx3")
