"""The kernels for GPUs, as far as a machine without one can check them: that they compute right under Triton's
interpreter, and that the compiler makes machine code of them that fits a GPU's shared memory and registers. Some of
their configurations are compiled here; ``compiled.py`` as a command compiles all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine_core.kv_cache_interface import ShortConvSpec
from tests.engine_core.attention.sequences import Geometry
from tests.engine_core.kernels.compiled import (
    FORMATS,
    STATES,
    Compiled,
    adapt,
    attend,
    compiling,
    compute_layers,
    keep_states,
    multiply_quantized,
)

ROOT = Path(__file__).resolve().parents[3]
INTERPRETED = Path(__file__).parent / "interpreted"


MISSING = """
import importlib.machinery

ABSENT = {
    "click", "google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "hypothesis", "prometheus_client",
    "pytest_asyncio", "pytest_timeout", "ringline", "services", "structlog", "uvloop", "xdist",
}
finder = importlib.machinery.PathFinder
find = finder.find_spec
finder.find_spec = classmethod(lambda _, name, *rest: None if name.split(".")[0] in ABSENT else find(name, *rest))

import pytest, benchmarks.gpu_run
from benchmarks.gpu import layers, memory, part, preflight, proofs, sampling, speed, traces
"""
REHEARSED = "-c tests/gpu/pytest.ini --confcutdir tests/gpu tests/gpu --device cpu -k test_kernels"
"""The tests of every kernel that a GPU runs."""


@pytest.mark.long
@pytest.mark.timeout(600)  # of all files
def test_what_a_gpu_runs_is_found_and_interpreted_without_the_packages_of_services() -> None:
    """`make test-gpu`, and all parts of `make gpu-run` without services, need only torch, transformers and pytest."""
    options = f"-p no:cacheprovider -x --rootdir . {REHEARSED}".split()
    done = _interpreted(
        "-c", f"{MISSING}raise SystemExit(pytest.main({options!r}))", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    )
    assert not done.returncode, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 30


OF_OPS = "norm_of_groups_scaled or several_ranks or stays_quantized"
"""What no test of a GPU runs: ops of several ranks, and all formats."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "tests",
    [
        ("-k", f"test_engine or test_libraries or test_lora or test_random_steps or (bfloat16 and ({OF_OPS}))"),
        pytest.param((f"--ignore={INTERPRETED}/test_engine.py",), marks=pytest.mark.wide),
        pytest.param(("--wide",), marks=pytest.mark.wide),
    ],
    ids=["an engine, libraries and ranks", "ops and attention", "in all shapes"],
)
def test_interpreted(tests: tuple[str, ...]) -> None:
    done = _interpreted("-m", "pytest", "-p", "no:cacheprovider", "-x", "--rootdir", ".", str(INTERPRETED), *tests)
    assert done.returncode == 0, done.stdout + done.stderr


def _interpreted(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _named(made: list[Compiled], name: str) -> list[Compiled]:
    return [one for one in made if one.name == name]


@pytest.mark.parametrize(
    ("capability", "dtype", "geometry", "uniform"),
    [
        (90, torch.bfloat16, Geometry(32, 8, 128, 16), False),
        pytest.param(90, torch.float32, Geometry(32, 8, 256, 64), False, marks=pytest.mark.wide),
        pytest.param(90, torch.bfloat16, Geometry(16, 8, 64, 32), True, marks=pytest.mark.wide),
        pytest.param(80, torch.bfloat16, Geometry(32, 8, 128, 16), False, marks=pytest.mark.wide),
        pytest.param(80, torch.float16, Geometry(14, 2, 96, 16), False, marks=pytest.mark.wide),
        (80, torch.float32, Geometry(4, 2, 256, 16), True),
    ],
    ids=str,
)
def test_attention_compiles(
    capability: int, dtype: torch.dtype, geometry: Geometry, uniform: bool, tmp_path: Path
) -> None:
    with compiling(capability, tmp_path) as made:
        attend(geometry, dtype, uniform=uniform)
    names = {"write_keys_and_values", "rotate", "attend_chunks", "attend_single_rows", "join_splits"}
    assert {one.name for one in made} == names
    assert [one for one in made if not one.fits] == []
    # On Hopper the products of prompts in narrow types are to be made by its tensor cores as a whole.
    [chunks] = _named(made, "attend_chunks")
    assert ("wgmma" in chunks.ptx) == (capability == 90 and dtype != torch.float32 and not uniform)
    assert ("tf32" in chunks.ptx) is False


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.wide), 90])
def test_layers_compile(capability: int, tmp_path: Path) -> None:
    with compiling(capability, tmp_path) as made:
        compute_layers(Geometry(32, 8, 128, 16), torch.bfloat16, hidden=4096, inner=14336)
    assert {one.name for one in made} == {"normalize", "rotate", "activate", "multiply"}
    assert [one for one in made if not one.fits] == []
    products = _named(made, "multiply")
    assert len(products) == 3
    for one in products:
        assert ("wgmma" in one.ptx) == (capability == 90)
        assert "cp.async" in one.ptx


@pytest.mark.parametrize(
    "name", ["AWQ", *(pytest.param(name, marks=pytest.mark.wide) for name in FORMATS if name != "AWQ")]
)
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.wide), 90])
def test_weights_that_stay_quantized_compile(capability: int, name: str, tmp_path: Path) -> None:
    with compiling(capability, tmp_path) as made:
        multiply_quantized(FORMATS[name], torch.bfloat16, 4096, 14336)
    assert {one.name for one in made} == {"multiply_quantized"}
    assert [one for one in made if not one.fits] == []


@pytest.mark.parametrize(
    ("capability", "dtype", "groups"),
    [
        (90, torch.bfloat16, 1),
        pytest.param(80, torch.bfloat16, 1, marks=pytest.mark.wide),
        pytest.param(80, torch.float16, 16, marks=pytest.mark.wide),
        pytest.param(90, torch.float32, 1, marks=pytest.mark.wide),
    ],
    ids=str,
)
def test_adapters_compile(capability: int, dtype: torch.dtype, groups: int, tmp_path: Path) -> None:
    """Weights are read in vectors, although their addresses come out of memory; a captured launch has the same code."""
    with compiling(capability, tmp_path) as made:
        adapt(dtype, 4096, 1024, groups)
    assert [one for one in made if not one.fits] == []
    assert sorted(one.name for one in made) == ["expand"] * (1 if dtype == torch.float32 else 2) + ["shrink"]
    [shrink], expands = _named(made, "shrink"), _named(made, "expand")
    assert "cp.async.cg.shared.global" in shrink.ptx
    assert "ld.global.b16" not in shrink.ptx
    assert all(("tf32" in one.ptx) == (dtype != torch.float32) for one in expands)


@pytest.mark.parametrize(
    "model",
    ["Mamba-2-130M", *(pytest.param(name, marks=pytest.mark.wide) for name in STATES if name != "Mamba-2-130M")],
)
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.wide), 90])
def test_states_compile(capability: int, model: str, tmp_path: Path) -> None:
    """Views of a single row have other strides than those of several. Where sums depend on the code, it is the same."""
    spec, delta = STATES[model]
    with compiling(capability, tmp_path) as made:
        for rows in (40, 1):
            keep_states(spec, torch.bfloat16, delta, rows)
    assert [one for one in made if not one.fits] == []
    names = sorted(one.name for one in made if one.name != "convolve")
    assert names == ([] if isinstance(spec, ShortConvSpec) else ["advance", "normalize_gated"])
    assert _named(made, "convolve") != []


def test_float32_is_not_rounded_to_be_multiplied(tmp_path: Path) -> None:
    with compiling(90, tmp_path) as made:
        compute_layers(Geometry(4, 2, 64, 16), torch.float32, hidden=256, inner=512)
    for one in _named(made, "multiply"):
        assert one.fits
        assert "tf32" not in one.ptx
        assert "fma.rn.f32" in one.ptx
