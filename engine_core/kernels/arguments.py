"""The native kernels and what they take: the lists and the structures of cpu/interface.h, read from that file.

Fields have the names that they have there; every pointer is an address, or None.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache

import torch

from engine_core.kernels.build import SOURCES

MAX_HEAD_DIM = 1024
"""``kMostHeadDim`` of cpu/simd/formats.h."""
NUMBER_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""``RinglineNumberType``"""
DONE, NO_MEMORY, RANK_FAILED, RANKS_DISAGREE = range(4)
"""``RinglineResult``"""
KERNELS, INT8_KERNELS = "RINGLINE_KERNELS", "RINGLINE_INT8_KERNELS"
"""The lists."""

_TYPES = {"float": ctypes.c_float, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}


@cache
def structures() -> dict[str, type[ctypes.Structure]]:
    """All structures, by their names. A name that is not one of their fields cannot be set."""
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{$(.*?)^\};$", _header(), re.MULTILINE | re.DOTALL):
        fields = [
            (re.findall(r"\w+", declared)[-1], ctypes.c_void_p if "*" in declared else _TYPES[kind])
            for kind, names in re.findall(r"(?:const )?\b(\w+)([^;]+);", body)
            for declared in names.split(",")
        ]
        found[name] = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
    return found


@cache
def listed(kernels: str) -> dict[str, type[ctypes.Structure]]:
    """The names of the kernels of a list, in its order, and what each takes."""
    [lines] = re.findall(rf"^#define {kernels}\(X\)((?:.*\\\n)*.*)$", _header(), re.MULTILINE)
    return {name: structures()[arguments] for name, arguments in re.findall(r"X\((\w+), (\w+)\)", lines)}


@cache
def _header() -> str:
    """The file without its comments. It is read when kernels are loaded: whoever has none may have no sources."""
    return re.sub(r" *//.*", "", (SOURCES / "interface.h").read_text(encoding="utf-8"))
