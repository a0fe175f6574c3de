"""What Python hands to the native kernels lies in memory as the C++ of them reads it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from engine_core.kernels import arguments
from engine_core.kernels.build import SOURCES

STRUCTURES = [
    each for each in vars(arguments).values() if isinstance(each, type) and issubclass(each, ctypes.Structure)
]


def name_in_c(structure: type[ctypes.Structure]) -> str:
    """Its docstring names it."""
    found = re.match(r"``(\w+)`` of cpu/(?:interface|kernel_table)\.h\.", structure.__doc__ or "")
    assert found is not None, structure
    return found[1]


def layout(structure: type[ctypes.Structure]) -> dict[str, tuple[int, int]]:
    """Offset and size of each field, and of the whole."""
    fields = {name: getattr(structure, name) for name, *_ in structure._fields_}
    return {name: (field.offset, field.size) for name, field in fields.items()} | {"": (0, ctypes.sizeof(structure))}


def compiled_layout(directory: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """The same, from the compiler."""
    lines = []
    for structure in STRUCTURES:
        name = name_in_c(structure)
        lines.append(f'std::printf("{name}  0 %zu\\n", sizeof({name}));')
        lines += [
            f'std::printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof({name}::{field}));'
            for field, *_ in structure._fields_
        ]
    source = directory / "layout.cpp"
    source.write_text(
        '#include <cstddef>\n#include <cstdio>\n#include "interface.h"\n#include "kernel_table.h"\n'
        "int main() {" + "\n".join(lines) + "}\n"
    )
    program = directory / "layout"
    subprocess.run(["g++", "-std=c++17", f"-I{SOURCES}", "-o", program, source], check=True, timeout=120)
    printed = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True).stdout
    rows = (line.split(" ") for line in printed.splitlines())
    return {(name, field): (int(offset), int(size)) for name, field, offset, size in rows}


def test_structures_have_the_layout_of_the_kernels(tmp_path: Path) -> None:
    mirrored = {
        (name_in_c(structure), field): place for structure in STRUCTURES for field, place in layout(structure).items()
    }
    assert len(STRUCTURES) >= 14
    assert mirrored == compiled_layout(tmp_path)
