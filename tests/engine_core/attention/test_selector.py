"""The backend is chosen by what the machine and the model allow, and says why."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.attention.selector import choose_attention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels import library
from engine_core.kernels.build import LIBRARY, BuildError, source_digest
from engine_core.kernels.library import CpuKernels, KernelsUnavailableError, load_kernels
from engine_core.kv_cache_interface import AttentionSpec


def test_native_kernels_where_they_can_compute_the_model() -> None:
    backend, why = choose_attention(64, torch.bfloat16)
    assert isinstance(backend, NativeAttention)
    assert why == f"attention by native kernels for {load_kernels().instruction_set}"
    assert isinstance(choose_attention(24, torch.bfloat16)[0], NativeAttention)
    backend, why = choose_attention(1040, torch.bfloat16)
    assert isinstance(backend, TorchAttention)
    assert "heads of up to 1024" in why


def test_torch_where_no_library_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load_kernels", lambda: load_kernels(directory=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    backend, why = choose_attention(64, torch.bfloat16)
    assert isinstance(backend, TorchAttention)
    assert why == "attention by torch: the native kernels cannot be built: there is no g++"


def test_numerics_name_what_decides_bits() -> None:
    def numerics(block_size: int, dtype: torch.dtype, instruction_set: str | None = None) -> str:
        kernels = load_kernels(instruction_set)
        return NativeAttention(kernels).numerics(KVCacheSpec((AttentionSpec(1, 16),), block_size, dtype))

    same = {numerics(size, torch.bfloat16) for size in (2, 4, 8, 16, 48, 128)} | {numerics(1, torch.float32)}
    assert len(same) == 1
    other = {numerics(size, torch.bfloat16) for size in (1, 3, 24, 40)} | {numerics(16, torch.float32, "portable")}
    assert len(same | other) == 6


def test_a_library_that_is_missing_or_of_other_sources_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = 0

    def build(directory: Path) -> Path:
        nonlocal builds
        builds += 1
        if source_digest() != library.source_digest():
            raise BuildError("these sources do not compile")
        return Path(shutil.copy(Path(library.__file__).parent / LIBRARY, directory / LIBRARY))

    monkeypatch.setattr(library, "build", build)
    current = (Path(library.__file__).parent / LIBRARY).read_bytes()
    (tmp_path / LIBRARY).write_bytes(current.replace(source_digest().encode(), b"0" * len(source_digest())))
    load_kernels(directory=tmp_path)
    load_kernels(directory=tmp_path)
    assert (builds, [path.name for path in tmp_path.iterdir()]) == (1, [LIBRARY])
    monkeypatch.setattr(library, "source_digest", lambda: "another")
    with pytest.raises(KernelsUnavailableError, match="these sources do not compile"):
        load_kernels(directory=tmp_path)


def test_without_room_for_a_build_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_half(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(library, "build", lambda directory: directory)
    monkeypatch.setattr(library.shutil, "copy", copy_half)
    with pytest.raises(KernelsUnavailableError, match="No space left on device"):
        load_kernels(directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_instruction_set_that_nobody_knows_is_refused() -> None:
    assert isinstance(load_kernels("portable"), CpuKernels)
    with pytest.raises(KernelsUnavailableError, match="no native kernels for avx3 on this processor"):
        load_kernels("avx3")
