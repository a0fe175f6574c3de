"""Part: what there is on this machine, before anything depends on it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.place import Place
from benchmarks.gpu.speed import limits_row
from benchmarks.report import Row
from engine_core.kernels.build import BuildError
from engine_core.kernels.provision import provide_library

_MODULES = {
    "engine": ("numpy", "regex", "safetensors", "sentencepiece", "tokenizers", "torch", "transformers", "xxhash"),
    "kernels": ("triton", "triton.language"),
    "services": (
        "click", "cryptography", "google.rpc.status_pb2", "grpc", "grpc_health.v1.health_pb2_grpc",
        "grpc_reflection.v1alpha.reflection", "httptools", "jinja2", "jwt", "llguidance", "msgspec",
        "prometheus_client", "starlette", "structlog", "uvicorn",
    ),
    "tests": ("pytest",),
    "Ringline": ("engine_core.llm", "ringline", "services.cli.main", "services.engine.main"),
    "if there": ("flashinfer", "torch.nn.attention.varlen", "uvloop", "xdist"),
}  # fmt: skip


def look(place: Place) -> Iterator[Row]:
    """What cannot be imported, built or allocated is in the rows, and fails the part where others need it."""
    yield {"what": "machine", "measured": None, **_versions(place)}
    missing = _imports()
    for group, problems in missing.items():
        yield {"what": f"imports: {group}", "measured": None, "missing": len(problems), **problems}
    yield {"what": "native kernels of the CPU", "of": "seconds", "target": None} | _native_kernels()
    yield limits_row(place.limits())
    if place.is_gpu:
        yield _first_kernel()
    if any(problems for group, problems in missing.items() if group != "if there"):
        raise RuntimeError(f"not everything can be imported: {missing}")


def _versions(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda,
        "float32": torch.get_float32_matmul_precision(),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "disk free GiB": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        **{name: shutil.which(name) for name in ("gcc", "g++", "nvcc", "nvidia-smi")},
        "Python.h": (Path(sysconfig.get_path("include")) / "Python.h").is_file(),  # Triton compiles with it
    }
    wanted = ("triton", "transformers", "numpy", "grpcio", "protobuf", "llguidance", "pytest")
    found |= {dist.name: dist.version for name in wanted for dist in importlib.metadata.distributions(name=name)}
    if place.is_gpu:
        properties = torch.cuda.get_device_properties()
        free, total = torch.cuda.mem_get_info()
        found |= {
            "GPU": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "GPU memory GiB": round(total / 2**30, 2),
            "GPU memory free GiB": round(free / 2**30, 2),
            "driver, processes": _output(
                "nvidia-smi", "--query-gpu=driver_version,compute_mode", "--format=csv,noheader"
            ),
        }
    return found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _imports() -> dict[str, dict[str, str]]:
    """By group, what cannot be imported and why."""
    found: dict[str, dict[str, str]] = {}
    for group, names in _MODULES.items():
        found[group] = {}
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:  # whatever a package does when it is imported
                found[group][name] = f"{type(error).__name__}: {error}"[:300]
    return found


def _native_kernels() -> dict[str, Any]:
    """Build them, if they are not there: the CPU's engines of later parts would each wait for that."""
    begun = time.monotonic()
    try:
        path = provide_library()
    except BuildError as error:
        return {"measured": None, "problem": str(error)}
    return {"measured": time.monotonic() - begun, "path": str(path)}


def _first_kernel() -> Row:
    """Triton compiles one kernel, with the C compiler that it finds, and torch's GPU runs it."""
    from engine_core.activation import Activation
    from engine_core.ops.gpu import GpuBackend

    begun = time.monotonic()
    x = torch.randn(4, 256, device="cuda", dtype=torch.float32)
    made = GpuBackend(1, False).activate(x, Activation.SILU)
    torch.testing.assert_close(made, torch.nn.functional.silu(x))
    return {
        "what": "a first kernel by Triton",
        "measured": time.monotonic() - begun,
        "of": "seconds",
        "target": None,
    }
