"""The native kernels and their arguments: the lists and structures of cpu/interface.h, parsed from that file.

Fields have the same names; every pointer is an address, or None.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

from engine_core.kernels.build import SOURCES

MAX_HEAD_DIM = 1024
"""``kMostHeadDim`` of cpu/simd/formats.h."""
NUMBER_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""``RinglineNumberType``"""
DONE, NO_MEMORY, RANK_FAILED, RANKS_DISAGREE = range(4)
"""``RinglineResult``"""
KERNELS, INT8_KERNELS = "RINGLINE_KERNELS", "RINGLINE_INT8_KERNELS"
"""The lists of kernels."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MAKING = threading.RLock()
_TYPES = {"float": ctypes.c_float, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}


def _made_once(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: a cache that threads can fill. Two classes of one structure are different types for ctypes."""
    cached = cache(make)

    @wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _MAKING:
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return made


@_made_once
def structures() -> dict[str, type[ctypes.Structure]]:
    """All structures by name. Only their fields can be set."""
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{$(.*?)^\};$", _header(), re.MULTILINE | re.DOTALL):
        fields = [
            (re.findall(r"\w+", declared)[-1], ctypes.c_void_p if "*" in declared else _TYPES[kind])
            for kind, names in re.findall(r"(?:const )?\b(\w+)([^;]+);", body)
            for declared in names.split(",")
        ]
        found[name] = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
    return found


@_made_once
def listed(kernels: str) -> dict[str, type[ctypes.Structure]]:
    """The kernels of a list in order, by name, with their arguments' structures."""
    [lines] = re.findall(rf"^#define {kernels}\(X\)((?:.*\\\n)*.*)$", _header(), re.MULTILINE)
    return {name: structures()[arguments] for name, arguments in re.findall(r"X\((\w+), (\w+)\)", lines)}


@cache
def _header() -> str:
    """The file without comments. Read only when kernels are loaded: without kernels, sources may be missing."""
    return re.sub(r" *//.*", "", (SOURCES / "interface.h").read_text(encoding="utf-8"))
