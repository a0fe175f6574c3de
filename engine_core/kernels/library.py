"""Loads the library of native kernels and finds the best ones that this processor can run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # its OpenMP runtime must be there before the library is loaded

from engine_core.kernels.build import LIBRARY, source_digest

INSTRUCTION_SETS = ("avx512_bf16", "avx2", "portable")
"""Those that attention is compiled for, best first."""
INT8_INSTRUCTION_SETS = ("avx512_vnni", "avx2", "portable")
"""Those that 8-bit linear layers are compiled for, best first."""

NUMBER_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class KernelsUnavailableError(Exception):
    """There are no native kernels to run; the text says why."""


class AttentionArguments(ctypes.Structure):
    """``RinglineAttention`` of cpu/attention.h."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("key_stride", ctypes.c_int64),
        ("value_stride", ctypes.c_int64),
        ("query_starts", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("block_table_stride", ctypes.c_int64),
        ("num_seqs", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("number_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class Int8Weight(ctypes.Structure):
    """``RinglineInt8Weight`` of cpu/int8_linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("column_sums", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    )


class Int8Call(ctypes.Structure):
    """``RinglineInt8Call`` of cpu/int8_linear.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("input_stride", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("input_type", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class Int8Packing(ctypes.Structure):
    """``RinglineInt8Packing`` of cpu/int8_linear.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("column_sums", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("input_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class _Int8Functions(ctypes.Structure):
    """``Int8Kernels`` of cpu/int8_linear.h."""

    _fields_ = (
        ("linear", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Int8Weight), ctypes.POINTER(Int8Call))),
        ("pack", ctypes.CFUNCTYPE(None, ctypes.POINTER(Int8Packing))),
    )


_AttentionKernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(AttentionArguments))


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """The kernels for one instruction set."""

    instruction_set: str
    build: str
    """The beginning of the digest of the sources."""
    attention: Callable[[AttentionArguments], int]
    """0, or 1 when there was no memory. Releases the interpreter's lock."""


@dataclass(frozen=True, slots=True)
class Int8Kernels:
    """The kernels of 8-bit linear layers for one instruction set. They release the interpreter's lock."""

    instruction_set: str
    linear: Callable[[Int8Weight, Int8Call], int]
    """0, or 1 when there was no memory."""
    pack: Callable[[Int8Packing], None]


def load_kernels(instruction_set: str | None = None, directory: Path = Path(__file__).parent) -> CpuKernels:
    """The kernels for ``instruction_set``, or the best ones; from the library in ``directory``.

    Raises ``KernelsUnavailableError``.
    """
    library, digest = _open_library(directory)
    candidates = INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(library.ringline_attention_kernel, candidates)
    return CpuKernels(chosen, digest[:8], _AttentionKernel(address))


def load_int8_kernels(instruction_set: str | None = None, directory: Path = Path(__file__).parent) -> Int8Kernels:
    """The kernels of 8-bit linear layers for ``instruction_set``, or the best ones.

    Raises ``KernelsUnavailableError``.
    """
    library, _ = _open_library(directory)
    candidates = INT8_INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(library.ringline_int8_kernels, candidates)
    functions = _Int8Functions.from_address(address)
    return Int8Kernels(chosen, functions.linear, functions.pack)


def _open_library(directory: Path) -> tuple[ctypes.CDLL, str]:
    """The library and the digest of the sources it was built from."""
    path = directory / LIBRARY
    if not path.exists():
        raise KernelsUnavailableError("no library of native kernels was built when the engine was installed")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailableError(f"the library of native kernels cannot be loaded: {error}") from error
    library.ringline_source_digest.restype = ctypes.c_char_p
    digest = library.ringline_source_digest().decode()
    if digest != source_digest():
        raise KernelsUnavailableError(
            "the library of native kernels is older than its sources: run python -m engine_core.kernels.build"
        )
    return library, digest


def _find(exported: Any, instruction_sets: tuple[str, ...]) -> tuple[str, int]:
    """The first of ``instruction_sets`` for which the library has something that runs here, and its address."""
    exported.restype = ctypes.c_void_p
    for candidate in instruction_sets:
        address = exported(candidate.encode())
        if address is not None:
            return candidate, address
    raise KernelsUnavailableError(f"there are no native kernels for {instruction_sets[0]} on this processor")
