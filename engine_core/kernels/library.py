"""Loads the library of native kernels, built first where it is missing or out of date, and finds the best kernels that
this processor can run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # its OpenMP runtime must be there before the library is loaded

from engine_core.kernels.arguments import (
    MAX_HEAD_DIM,
    NUMBER_TYPES,
    ActivationArguments,
    AttentionArguments,
    ExpertsArguments,
    GroupedLinearArguments,
    Int8Call,
    Int8KernelTable,
    Int8Packing,
    Int8Weight,
    KernelTable,
    LinearArguments,
    NormArguments,
    Operation,
    OperationKind,
    RotationArguments,
    RoutingArguments,
    RowsArguments,
    SelectionArguments,
    SigmoidGateArguments,
    Step,
)
from engine_core.kernels.build import BuildError, source_digest
from engine_core.kernels.capture import capturable
from engine_core.kernels.provision import PACKAGE, find_library, provide_library

INSTRUCTION_SETS = ("avx512_bf16", "avx2", "portable")
"""The instruction sets that the kernels are compiled for, best first."""
INT8_INSTRUCTION_SETS = ("avx512_vnni", "avx2", "portable")
"""The instruction sets that 8-bit linear layers are compiled for, best first."""


class KernelsUnavailableError(Exception):
    """There are no native kernels to run; the text says why."""


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """The kernels for one instruction set: each returns 0, or 1 when there was no memory.

    They release the interpreter's lock, and can be captured (see capture.py).
    """

    instruction_set: str
    build: str
    """The beginning of the digest of the sources."""
    attention: Callable[[AttentionArguments], int]
    linear: Callable[[LinearArguments], int]
    normalize: Callable[[NormArguments], int]
    rotate: Callable[[RotationArguments], int]
    activate: Callable[[ActivationArguments], int]
    select_rows: Callable[[SelectionArguments], int]
    sigmoid_gate: Callable[[SigmoidGateArguments], int]
    grouped_linear: Callable[[GroupedLinearArguments], int]
    route: Callable[[RoutingArguments], int]
    experts: Callable[[ExpertsArguments], int]
    read_rows: Callable[[RowsArguments], int]
    """Cannot be captured: it is not part of the layers."""
    argmax: Callable[[LinearArguments], int]
    """Cannot be captured either. Writes [M] int64: the column of each row's greatest result, the first of equals."""
    replay: Callable[..., int]
    """Makes captured calls."""


@dataclass(frozen=True, slots=True)
class Int8Kernels:
    """The kernels of 8-bit weights for one instruction set. They release the interpreter's lock, and ``linear`` and
    ``experts`` can be captured.
    """

    instruction_set: str
    linear: Callable[[Int8Weight, Int8Call], int]
    """0, or 1 when there was no memory."""
    pack: Callable[[Int8Packing], None]
    experts: Callable[[ExpertsArguments], int]
    """Like ``linear``."""


class KernelLibrary:
    """The library of native kernels, built where it is missing, and loaded, when first asked for. What is wrong with it
    stays wrong: it is not built a second time.
    """

    def __init__(self, cache: str | None = None, package: Path = PACKAGE) -> None:
        """``cache``: where it is kept if it cannot be beside its package; None: in this user's own."""
        self.problem: str | None = None
        """Why it cannot be used, once that is known."""
        self.path: Path | None = None
        """Where it was found or built."""
        self._cache = cache
        self._package = package
        self._loaded: ctypes.CDLL | None = None

    def is_built(self) -> bool:
        try:
            return find_library(self._cache, self._package) is not None
        except BuildError:
            return False

    def load(self) -> ctypes.CDLL:
        """Raises ``KernelsUnavailableError``."""
        if self._loaded is None and self.problem is None:
            try:
                self.path = provide_library(self._cache, self._package)
                self._loaded = _load(self.path)
            except BuildError as error:
                self.problem = f"the native kernels cannot be built: {error}"
            except OSError as error:
                self.problem = f"the library of native kernels cannot be loaded: {error}"
        if self._loaded is None:
            raise KernelsUnavailableError(self.problem)
        return self._loaded


def load_kernels(instruction_set: str | None = None, library: KernelLibrary | None = None) -> CpuKernels:
    """The kernels for ``instruction_set``, or the best ones. Raises ``KernelsUnavailableError``."""
    opened = (library or KernelLibrary()).load()
    candidates = INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(opened.ringline_kernels, candidates)
    table = KernelTable.from_address(address)
    return CpuKernels(
        chosen,
        opened.ringline_source_digest().decode()[:8],
        capturable(OperationKind.ATTEND, address, table.attention),
        capturable(OperationKind.MULTIPLY, address, table.linear),
        capturable(OperationKind.NORMALIZE, address, table.normalize),
        capturable(OperationKind.ROTATE, address, table.rotate),
        capturable(OperationKind.ACTIVATE, address, table.activate),
        capturable(OperationKind.SELECT, address, table.select_rows),
        capturable(OperationKind.GATE, address, table.sigmoid_gate),
        capturable(OperationKind.MULTIPLY_GROUPS, address, table.grouped_linear),
        capturable(OperationKind.ROUTE, address, table.route),
        capturable(OperationKind.RUN_EXPERTS, address, table.experts),
        table.read_rows,
        table.argmax,
        opened.ringline_replay,
    )


def load_kernels_for(head_dim: int, dtype: torch.dtype, library: KernelLibrary | None = None) -> CpuKernels:
    """The best kernels. Raises ``KernelsUnavailableError`` also where they cannot compute such heads."""
    if head_dim > MAX_HEAD_DIM or dtype not in NUMBER_TYPES:
        name = str(dtype).removeprefix("torch.")
        raise KernelsUnavailableError(
            f"native kernels need float32, bfloat16 or float16, and head_dim up to {MAX_HEAD_DIM}; the model has "
            f"{name} and head_dim {head_dim}"
        )
    return load_kernels(library=library)


def load_int8_kernels(instruction_set: str | None = None, library: KernelLibrary | None = None) -> Int8Kernels:
    """The kernels of 8-bit linear layers for ``instruction_set``, or the best ones.

    Raises ``KernelsUnavailableError``.
    """
    opened = (library or KernelLibrary()).load()
    candidates = INT8_INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(opened.ringline_int8_kernels, candidates)
    functions = Int8KernelTable.from_address(address)
    linear = capturable(OperationKind.MULTIPLY_INT8, address, functions.linear)
    experts = capturable(OperationKind.RUN_INT8_EXPERTS, address, functions.experts)
    return Int8Kernels(chosen, linear, functions.pack, experts)


def _load(path: Path) -> ctypes.CDLL:
    """Raises ``OSError``."""
    library = ctypes.CDLL(str(path))
    library.ringline_source_digest.restype = ctypes.c_char_p
    if library.ringline_source_digest().decode() != source_digest():
        raise OSError("its sources have changed since this process loaded it")
    library.ringline_replay.argtypes = (ctypes.POINTER(Operation), ctypes.c_int64, ctypes.POINTER(Step))
    return library


def _find(exported: Any, instruction_sets: tuple[str, ...]) -> tuple[str, int]:
    """The first of ``instruction_sets`` for which the library has kernels that run here, and their table's address."""
    exported.restype = ctypes.c_void_p
    for candidate in instruction_sets:
        address = exported(candidate.encode())
        if address is not None:
            return candidate, address
    raise KernelsUnavailableError(f"there are no native kernels for {instruction_sets[0]} on this processor")
