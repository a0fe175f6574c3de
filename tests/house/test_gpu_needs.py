"""`make test-gpu`, and all parts of `make gpu-run` without services, need only torch, transformers and pytest."""

from __future__ import annotations

import sys

import pytest

from tests.programs import output_of
from tests.ring import ROOT

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
    code = "import pytest, benchmarks.gpu_run\n"
    code += "from benchmarks.gpu import layers, memory, part, preflight, proofs, sampling, speed, traces\n"
    code += f"raise SystemExit(pytest.main({options.split()!r}))"
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collected = output_of(sys.executable, "-c", MISSING + code, env=environment, timeout=300)
    for file in (ROOT / "tests/gpu").glob("test_*.py"):
        assert file.name in collected
