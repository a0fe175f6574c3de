"""Loads the library of native kernels, builds it first if it is missing or out of date, and finds the best kernels for
this processor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # its OpenMP runtime must be there before the library is loaded

from engine_core.kernels.arguments import INT8_KERNELS, KERNELS, MAX_HEAD_DIM, NUMBER_TYPES, listed, structures
from engine_core.kernels.build import BuildError, source_digest
from engine_core.kernels.capture import Kernel
from engine_core.kernels.openmp import share_openmp
from engine_core.kernels.provision import PACKAGE, find_library, provide_library

INSTRUCTION_SETS = ("avx512_bf16", "avx2", "portable")
"""Instruction sets of the kernels, best first."""
INT8_INSTRUCTION_SETS = ("avx512_vnni", "avx2", "portable")
"""Instruction sets of 8-bit linear layers, best first."""


class KernelsUnavailableError(Exception):
    """There are no native kernels to run; the text says why."""


class Kernels:
    """The kernels of a list in cpu/interface.h for one instruction set, as attributes by name."""

    def __init__(
        self, instruction_set: str, build: str, replay: Callable[..., int], kernels: dict[str, Kernel]
    ) -> None:
        """``build``: the start of the sources' digest. ``replay`` makes captured calls of any kernels."""
        self.instruction_set = instruction_set
        self.build = build
        self.replay = replay
        vars(self).update(kernels)

    def __getattr__(self, name: str) -> Kernel:
        raise AttributeError(f"cpu/interface.h lists no kernel {name}")


class KernelLibrary:
    """The library of native kernels, built if missing, and loaded when first asked for. Failures are final: it is not
    built a second time.
    """

    def __init__(self, cache: str | None = None, package: Path = PACKAGE) -> None:
        """``cache``: the folder used if the package cannot hold it; None: this user's cache."""
        self.problem: str | None = None
        """Why it cannot be used, once known."""
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

    def load(self, on_progress: Callable[[int, int], None] | None = None) -> ctypes.CDLL:
        """Raises ``KernelsUnavailableError``. ``on_progress(done, total)``: files compiled, if it is built."""
        if self._loaded is None and self.problem is None:
            try:
                self.path = provide_library(self._cache, self._package, on_progress)
                self._loaded = _load(self.path)
            except BuildError as error:
                self.problem = f"the native kernels cannot be built: {error}"
            except OSError as error:
                self.problem = f"the library of native kernels cannot be loaded: {error}"
        if self._loaded is None:
            raise KernelsUnavailableError(self.problem)
        return self._loaded


def load_kernels(instruction_set: str | None = None, library: KernelLibrary | None = None) -> Kernels:
    """The kernels for ``instruction_set``, or the best ones. Raises ``KernelsUnavailableError``."""
    opened = (library or KernelLibrary()).load()
    candidates = INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    return _found(opened, opened.ringline_kernels, KERNELS, candidates)


def load_kernels_for(head_dim: int, dtype: torch.dtype, library: KernelLibrary | None = None) -> Kernels:
    """The best kernels. Raises ``KernelsUnavailableError`` also if they cannot compute these heads."""
    if head_dim > MAX_HEAD_DIM or dtype not in NUMBER_TYPES:
        name = str(dtype).removeprefix("torch.")
        raise KernelsUnavailableError(
            f"native kernels need float32, bfloat16 or float16, and head_dim up to {MAX_HEAD_DIM}; the model has "
            f"{name} and head_dim {head_dim}"
        )
    return load_kernels(library=library)


def load_int8_kernels(instruction_set: str | None = None, library: KernelLibrary | None = None) -> Kernels:
    """The 8-bit kernels for ``instruction_set``, or the best ones. Raises ``KernelsUnavailableError``."""
    opened = (library or KernelLibrary()).load()
    candidates = INT8_INSTRUCTION_SETS if instruction_set is None else (instruction_set,)
    return _found(opened, opened.ringline_int8_kernels, INT8_KERNELS, candidates)


def _load(path: Path) -> ctypes.CDLL:
    """Raises ``OSError``."""
    share_openmp()
    library = ctypes.CDLL(str(path))
    library.ringline_source_digest.restype = ctypes.c_char_p
    if library.ringline_source_digest().decode() != source_digest():
        raise OSError("its sources have changed since this process loaded it")
    operation, step = (ctypes.POINTER(structures()[name]) for name in ("RinglineOperation", "RinglineStep"))
    library.ringline_replay.argtypes = (operation, ctypes.c_int64, step)
    return library


def _found(library: ctypes.CDLL, exported: Any, kernels: str, instruction_sets: tuple[str, ...]) -> Kernels:
    """The list ``kernels`` for the first of ``instruction_sets`` that is ``exported`` and runs here."""
    exported.restype = ctypes.c_void_p
    for candidate in instruction_sets:
        address = exported(candidate.encode())
        if address is not None:
            break
    else:
        raise KernelsUnavailableError(f"there are no native kernels for {instruction_sets[0]} on this processor")
    kinds = {name: kind for kind, name in enumerate([*listed(KERNELS), *listed(INT8_KERNELS)])}
    table = (ctypes.c_void_p * len(listed(kernels))).from_address(address)
    found = {
        name: Kernel(kinds[name], at, ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(arguments))(at), arguments)
        for at, (name, arguments) in zip(table, listed(kernels).items(), strict=True)
    }
    build = library.ringline_source_digest().decode()[:8]
    return Kernels(candidate, build, library.ringline_replay, found)
