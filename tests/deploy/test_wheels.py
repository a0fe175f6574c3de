"""Wheels with kernels inside: what `make wheels` makes, without compiling again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy.release import wheels
from deploy.release.wheels import ROOT, TABLES, WheelError, _clean_copy, glibc_of, make_server_wheel, target_for
from engine_core.kernels.build import _X86_TABLES, LIBRARY, Target
from engine_core.kernels.provision import find_library
from tests.wheels.__main__ import Row, problems

PROGRAM = """
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1], {"--build-option": ["--plat-name=linux_aarch64"]} if sys.argv[2:] else None))
"""
INSIDE = f"engine_core/kernels/{LIBRARY}"


def wheel_of(sources: Path, out: Path, library: Path | None) -> tuple[str, ZipFile]:
    """Built by setuptools alone."""
    known = os.environ | ({"RINGLINE_KERNELS": str(library)} if library else {})
    command = [sys.executable, "-c", PROGRAM, str(out), *(["for another processor"] if library else [])]
    done = subprocess.run(command, cwd=sources, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name = done.stdout.splitlines()[-1]
    return name, ZipFile(out / name)


def test_kernels_make_a_wheel_of_one_processor(tmp_path: Path) -> None:
    library = tmp_path / LIBRARY
    library.write_bytes(b"kernels")
    with _clean_copy(ROOT) as sources:
        name, wheel = wheel_of(sources, tmp_path, library)
        with wheel:
            assert name.endswith("-py3-none-linux_aarch64.whl")
            assert wheel.read(INSIDE) == b"kernels"
            assert {"services/checkpoints/tiny/model.safetensors", "engine_core/kernels/cpu/library.cpp"} <= {
                *wheel.namelist()
            }
        name, wheel = wheel_of(sources, tmp_path, None)
        with wheel:
            assert name.endswith("-py3-none-any.whl")
            assert INSIDE not in wheel.namelist()


def test_a_library_runs_on_every_linux_that_torch_runs_on() -> None:
    """No runtimes but glibc's, and no symbol of it younger than manylinux2014 has: auditwheel checks the rest."""
    library = find_library()
    assert library is not None
    content = library.read_bytes()
    versions = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    assert versions
    assert max(versions) <= (2, 17)
    assert not re.search(rb"lib(stdc\+\+|gomp|omp)\b[^/ ]*\.so", content)


def test_what_cannot_be_compiled_is_told(tmp_path: Path) -> None:
    assert target_for("no").compiler == "no-linux-gnu-g++"
    with pytest.raises(WheelError, match=r"No kernels for no: no-linux-gnu-g\+\+ is not installed. Install Debian's"):
        make_server_wheel(target_for("no"), tmp_path)


def test_no_wheel_lacks_an_instruction_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(TABLES["x86_64"]) == set(_X86_TABLES)
    objects = tmp_path / "objects"
    objects.mkdir()
    (objects / "library.o").touch()

    def build(directory: Path, kept: Path, on_progress: object, target: Target) -> Path:
        assert not (kept / "library.o").exists(), "an earlier run's refers to the tables of then"
        for name in TABLES["x86_64"][1:]:
            (kept / f"{name}.o").touch()
        return directory / LIBRARY

    monkeypatch.setattr(wheels, "build", build)
    with pytest.raises(WheelError, match=r"A wheel for x86_64 would lack kernels_avx512_bf16: g\+\+ could not"):
        make_server_wheel(Target("x86_64", "g++"), tmp_path, objects)


def row(numerics: str, bits: str = "b") -> Row:
    return Row("here", "avx2", False, 0, None, 1.0, numerics, bits)


def test_a_trial_of_wheels_tells_what_differs() -> None:
    assert list(problems([row("n"), row("n")])) == []
    assert list(problems([row("n"), row("m", "c")])) == ["avx2: different bits: b, c", "avx2: different numerics: m, n"]


def test_glibc_of_a_name() -> None:
    assert glibc_of("one-0.1-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl") == (2, 17)
    assert glibc_of("one-0.1-py3-none-linux_x86_64.whl") is None


def test_a_folder_outside_of_a_clone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="not in a clone"), _clean_copy(tmp_path):
        pass
