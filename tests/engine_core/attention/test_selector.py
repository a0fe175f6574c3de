"""The backend is chosen by what the machine and the model allow, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_core.attention.native import NativeAttention
from engine_core.attention.selector import choose_attention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelLibrary, load_kernels


def test_native_kernels_where_they_can_compute_the_model() -> None:
    backend, why = choose_attention(64, torch.bfloat16)
    assert isinstance(backend, NativeAttention)
    assert why == f"attention by native kernels for {load_kernels().instruction_set}"
    assert isinstance(choose_attention(24, torch.bfloat16)[0], NativeAttention)
    backend, why = choose_attention(1040, torch.bfloat16)
    assert isinstance(backend, TorchAttention)
    assert "head_dim up to 1024; the model has bfloat16 and head_dim 1040" in why


@pytest.mark.usefixtures("cache_of_a_new_user")
def test_torch_where_no_library_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backend, why = choose_attention(64, torch.bfloat16, library=KernelLibrary(package=tmp_path))
    assert isinstance(backend, TorchAttention)
    assert why == "attention by torch: the native kernels cannot be built: g++ is not installed"


def test_an_8_bit_cache_needs_native_kernels() -> None:
    backend, why = choose_attention(64, torch.bfloat16, cache_dtype="fp8")
    assert backend.cache_dtype == "fp8"
    assert why.endswith(", KV cache in fp8")
    for head_dim, asked in ((64, "torch"), (1040, None)):
        with pytest.raises(ConfigError, match=r"kv_cache_dtype='fp8'.*auto without native kernels"):
            choose_attention(head_dim, torch.bfloat16, asked, cache_dtype="fp8")
