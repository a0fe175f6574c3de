"""Builds the library of native kernels with a plain call of g++: ``python -m engine_core.kernels.build``.

The Makefile runs this file by its path before anything is installed, so it needs only the standard library. Code for
each instruction set is an object file, compiled with that set's flags; sets that the compiler does not know are left
out. The OpenMP runtime is not linked: its symbols come from the runtime that torch has loaded, so that a process has
one pool of threads and never two. Nor is a runtime of C++ linked, and of glibc nothing is needed that is younger than
its 2.17, so that a library in a wheel runs wherever torch does. A folder for object files may be kept, so that a build
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu"
LIBRARY = "libringline_cpu.so"

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-math-errno",
    # Which products and sums the compiler fuses would depend on the code around them, and so would a row's bits.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",  # the compiler's own headers leave undefined what a mask hides
)
_AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_X86_TABLES = {
    "kernels_avx512_bf16": (*_AVX512_FLAGS, "-mavx512bf16", "-mavx512vbmi"),
    "kernels_avx2": _AVX2_FLAGS,
    "int8_kernels_avx512_vnni": (*_AVX512_FLAGS, "-mavx512vnni"),
    "int8_kernels_avx2": _AVX2_FLAGS,
}
_PORTABLE_TABLES = ("kernels_portable", "int8_kernels_portable")


class BuildError(Exception):
    """The library could not be built; the text says why."""


@dataclass(frozen=True)
class Target:
    """The processors that a library is for."""

    machine: str
    """As uname has it: x86_64, aarch64."""
    compiler: str
    """The g++ that compiles for them."""


HERE = Target(platform.machine(), "g++")


def source_digest() -> str:
    """A digest of all sources of the library: a library with another digest is out of date."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h"), Path(__file__)]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def build(
    directory: Path,
    objects: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    target: Target = HERE,
) -> Path:
    """Compile and link ``LIBRARY`` into ``directory``; return its path. Raises ``BuildError``.

    Takes about two minutes of one core. The library appears whole or not at all. ``objects``: a folder on the same file
    system for object files, of these sources alone; those that it has are taken, and none are deleted.
    ``on_progress(done, total)`` is called with compiled files.
    """
    compiler = shutil.which(target.compiler)
    if compiler is None:
        raise BuildError(f"{target.compiler} is not installed")
    tables = _X86_TABLES if target.machine == "x86_64" else {}
    try:
        with nullcontext(objects) if objects else tempfile.TemporaryDirectory(dir=directory) as work:
            return _build(compiler, tables, directory, Path(work), on_progress or (lambda done, total: None))
    except OSError as error:
        raise BuildError(f"{directory} cannot be written: {error.strerror}") from error


def _build(
    compiler: str,
    tables: Mapping[str, tuple[str, ...]],
    directory: Path,
    work: Path,
    on_progress: Callable[[int, int], None],
) -> Path:
    # As many at a time as there are cores, so that an interruption finds some of them whole.
    with _ending_early(ThreadPoolExecutor(len(os.sched_getaffinity(0)))) as pool:

        def compile_one(source: str, name: str, *flags: str) -> tuple[Path, str]:
            output = work / f"{name}.o"
            # It appears whole; and a compiler may outlive a builder that was killed, and write on beside the next one.
            draft = work / f"{name}-{os.getpid()}.o"
            command = [compiler, *_FLAGS, *flags, f"-I{SOURCES}", "-c", str(SOURCES / source), "-o", str(draft)]
            if not output.exists():
                if error := _error_of(command):
                    return output, error
                draft.replace(output)
            return output, ""

        def compile_table(name: str, *flags: str) -> tuple[Path, str]:
            """``kernels_avx2``: kernels.cpp with the vectors of simd/avx2.h, ``int8_kernels_avx2`` of int8_avx2.h."""
            kernels, instruction_set = name.split("kernels_")
            vectors = f'-DRINGLINE_VECTORS="simd/{kernels}{instruction_set}.h"'
            return compile_one(f"{kernels}kernels.cpp", name, vectors, f"-DRINGLINE_TABLE={name}", *flags)

        optional = {name: pool.submit(compile_table, name, *flags) for name, flags in tables.items()}
        needed = [pool.submit(compile_table, name) for name in _PORTABLE_TABLES]
        needed.append(pool.submit(compile_one, "threads/team.cpp", "team"))
        jobs = [*optional.values(), *needed]
        for done, _ in enumerate(as_completed(jobs), 1):
            on_progress(done, len(jobs) + 1)
        known = {name: result.result() for name, result in optional.items()}
        for name, (_, error) in known.items():
            if error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        built = {name: output for name, (output, error) in known.items() if not error}
        defines = [f"-DRINGLINE_{name.upper()}" for name in built]
        digest = f'-DRINGLINE_SOURCE_DIGEST="{source_digest()}"'
        needed.append(pool.submit(compile_one, "library.cpp", "library", digest, *defines))
        objects = list(built.values())
        for output, error in (result.result() for result in needed):
            if error:
                raise BuildError(error)
            objects.append(output)
        on_progress(len(jobs) + 1, len(jobs) + 1)
        linked = work / LIBRARY
        if error := _error_of([compiler, "-shared", *map(str, objects), "-o", str(linked)]):
            raise BuildError(error)
        return linked.replace(directory / LIBRARY)


@contextmanager
def _ending_early(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """``pool``, which begins nothing more once the body has raised."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _error_of(command: list[str]) -> str:
    """A failing command's error; empty if it succeeds."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr.strip() or f"{command[0]} exits with {result.returncode}"


if __name__ == "__main__":
    print(build(Path(__file__).parent))
