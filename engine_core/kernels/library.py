"""Loads the library of native kernels, built first where it is missing or out of date, and finds the best kernels that
this processor can run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from engine_core.kernels.build import LIBRARY, BuildError, build, source_digest
from engine_core.kernels.capture import capturable

INSTRUCTION_SETS = ("avx512_bf16", "avx2", "portable")
"""Those that the kernels are compiled for, best first."""
INT8_INSTRUCTION_SETS = ("avx512_vnni", "avx2", "portable")
"""Those that 8-bit linear layers are compiled for, best first."""


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
    """As ``linear``."""


def load_kernels(instruction_set: str | None = None, directory: Path = Path(__file__).parent) -> CpuKernels:
    """The kernels for ``instruction_set``, or the best ones; from the library in ``directory``.

    Raises ``KernelsUnavailableError``.
    """
    library, digest = _open_library(directory)
    candidates = INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(library.ringline_kernels, candidates)
    table = KernelTable.from_address(address)
    return CpuKernels(
        chosen,
        digest[:8],
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
        library.ringline_replay,
    )


def load_kernels_for(head_dim: int, dtype: torch.dtype) -> CpuKernels:
    """The best kernels. Raises ``KernelsUnavailableError`` also where they cannot compute such heads."""
    if head_dim > MAX_HEAD_DIM or dtype not in NUMBER_TYPES:
        asked = f"{head_dim} of {dtype}"
        raise KernelsUnavailableError(f"native kernels compute heads of up to {MAX_HEAD_DIM}, not {asked}")
    return load_kernels()


def load_int8_kernels(instruction_set: str | None = None, directory: Path = Path(__file__).parent) -> Int8Kernels:
    """The kernels of 8-bit linear layers for ``instruction_set``, or the best ones.

    Raises ``KernelsUnavailableError``.
    """
    library, _ = _open_library(directory)
    candidates = INT8_INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    chosen, address = _find(library.ringline_int8_kernels, candidates)
    functions = Int8KernelTable.from_address(address)
    linear = capturable(OperationKind.MULTIPLY_INT8, address, functions.linear)
    experts = capturable(OperationKind.RUN_INT8_EXPERTS, address, functions.experts)
    return Int8Kernels(chosen, linear, functions.pack, experts)


def _open_library(directory: Path) -> tuple[ctypes.CDLL, str]:
    """The library and the digest of the sources it was built from; built first if it is not there or out of date."""
    expected, path = source_digest(), directory / LIBRARY
    if not _is_built_from(path, expected):
        try:
            with _one_builder(directory):  # of several engines that start at once, one compiles
                if not _is_built_from(path, expected):
                    _build_into(directory)
        except (BuildError, OSError) as error:
            raise KernelsUnavailableError(f"the native kernels cannot be built: {error}") from error
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailableError(f"the library of native kernels cannot be loaded: {error}") from error
    library.ringline_source_digest.restype = ctypes.c_char_p
    if library.ringline_source_digest().decode() != expected:
        raise KernelsUnavailableError("the sources of native kernels have changed since this process loaded them")
    library.ringline_replay.argtypes = (ctypes.POINTER(Operation), ctypes.c_int64, ctypes.POINTER(Step))
    return library, expected


def _is_built_from(path: Path, digest: str) -> bool:
    """Read from the file, not by loading it: a process that has loaded a library never loads its replacement."""
    return path.exists() and digest.encode() in path.read_bytes()


def _build_into(directory: Path) -> None:
    """Build in a temporary directory, so that an engine that is killed meanwhile leaves nothing behind here."""
    if not os.access(directory, os.W_OK):
        raise BuildError(f"{directory} cannot be written")
    draft = directory / f"new-{LIBRARY}"
    try:
        with tempfile.TemporaryDirectory() as work:
            shutil.copy(build(Path(work)), draft)
        draft.replace(directory / LIBRARY)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _one_builder(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory, which is released when the process ends at the latest."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _find(exported: Any, instruction_sets: tuple[str, ...]) -> tuple[str, int]:
    """The first of ``instruction_sets`` for which the library has kernels that run here, and their table's address."""
    exported.restype = ctypes.c_void_p
    for candidate in instruction_sets:
        address = exported(candidate.encode())
        if address is not None:
            return candidate, address
    raise KernelsUnavailableError(f"there are no native kernels for {instruction_sets[0]} on this processor")
