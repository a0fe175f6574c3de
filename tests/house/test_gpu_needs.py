"""`make test-gpu` and `make bench-gpu` install nothing: torch, transformers and pytest are all that they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MISSING = """
import importlib.machinery

ABSENT = {
    "click", "google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "hypothesis", "prometheus_client",
    "pytest_asyncio", "pytest_timeout", "ringline", "services", "structlog", "uvloop", "xdist",
}
finder = importlib.machinery.PathFinder
find = finder.find_spec
finder.find_spec = classmethod(lambda _, name, *rest: None if name.split(".")[0] in ABSENT else find(name, *rest))
"""


@pytest.mark.timeout(300)
def test_tests_and_benchmarks_on_a_gpu_are_found_without_the_packages_of_services() -> None:
    options = "-c tests/gpu/pytest.ini --rootdir . --confcutdir tests/gpu tests/gpu --collect-only -q"
    code = "import benchmarks.gpu, benchmarks.gpu_limits, benchmarks.gpu_parts, pytest\n"
    code += f"raise SystemExit(pytest.main({options.split()!r}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", MISSING + code]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for file in ("test_attention_libraries.py", "test_engine.py", "test_kernels.py"):
        assert file in result.stdout
