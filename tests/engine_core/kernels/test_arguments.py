"""What Python reads in the native kernels' interface is what the compiler makes of it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from engine_core.kernels import arguments
from engine_core.kernels.arguments import INT8_KERNELS, KERNELS, listed, structures
from engine_core.kernels.build import SOURCES
from engine_core.kernels.library import load_kernels


def compiled(directory: Path, questions: list[str]) -> list[int]:
    """The values of expressions in C++."""
    source = directory / "layout.cpp"
    source.write_text(
        '#include <cstddef>\n#include <cstdio>\n#include "kernel_table.h"\n#include "threads/replay.h"\n'
        "int main() {" + "\n".join(f'std::printf("%zu\\n", size_t({each}));' for each in questions) + "}\n"
        "void lead_team(int, Work, void*) {}\nint threads_worth(long, int) { return 1; }\n"
    )
    program = directory / "layout"
    subprocess.run(["g++", "-std=c++17", f"-I{SOURCES}", "-o", program, source], check=True, timeout=120)
    printed = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True).stdout
    return list(map(int, printed.split()))


def test_structures_and_lists_are_those_of_the_kernels(tmp_path: Path) -> None:
    expected: dict[str, int] = {}
    for name, structure in structures().items():
        expected[f"sizeof({name})"] = ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            expected |= {f"offsetof({name}, {field})": place.offset, f"sizeof({name}::{field})": place.size}
    tables = {"Kernels": listed(KERNELS), "Int8Kernels": listed(INT8_KERNELS)}
    for table, kernels in tables.items():
        expected[f"sizeof({table})"] = 8 * len(kernels)
        expected |= {f"offsetof({table}, {name})": 8 * place for place, name in enumerate(kernels)}
    kinds = [name for kernels in tables.values() for name in kernels]
    expected |= {f"kKind_{name}": kind for kind, name in enumerate(kinds)}
    results = ("Done", "NoMemory", "RankFailed", "RanksDisagree")
    names = ("DONE", "NO_MEMORY", "RANK_FAILED", "RANKS_DISAGREE")
    expected |= {f"kRingline{one}": getattr(arguments, other) for one, other in zip(results, names, strict=True)}
    assert len(structures()) >= 14
    assert len(set(kinds)) == len(kinds) >= 14
    assert dict(zip(expected, compiled(tmp_path, list(expected)), strict=True)) == expected


def test_a_name_that_is_not_there_is_an_error() -> None:
    kernels = load_kernels()
    with pytest.raises(AttributeError, match="no kernel softmax"):
        kernels.softmax  # noqa: B018
    with pytest.raises(AttributeError, match="lines"):
        kernels.normalize.arguments().lines = 3
