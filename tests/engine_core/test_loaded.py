"""What a process has loaded that has run an engine and recorded a profile of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "tiny"
PROGRAM = """
import json, sys
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from services.engine.profile import StepProfile

with LLM(sys.argv[1]) as llm:
    profile = StepProfile(1)
    profile.start()
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
    profile.finish()
    mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    print(json.dumps({"mapped": sorted(mapped), "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    finished = subprocess.run([sys.executable, "-c", PROGRAM, CHECKPOINT], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def test_there_is_one_openmp_runtime(loaded: dict[str, Any]) -> None:
    assert any("libringline_cpu" in path for path in loaded["mapped"]), "the kernels were not used"
    runtimes = {path for path in loaded["mapped"] if "gomp" in path or "omp5" in path or "libomp" in path}
    assert len(runtimes) == 1, runtimes


def test_triton_is_not_asked_for(loaded: dict[str, Any]) -> None:
    """An engine on a CPU runs where it is not installed."""
    assert "triton" not in loaded["modules"]


def test_transformers_models_stay_out(loaded: dict[str, Any]) -> None:
    """Only their configurations are read for a model of text that Ringline has itself."""
    assert "transformers" in loaded["modules"]
    assert not {"transformers.modeling_utils", "torch.distributed.tensor"} & set(loaded["modules"])


def test_torchs_compiler_stays_out(loaded: dict[str, Any]) -> None:
    """It would take seconds of every start, or of every engine that is profiled, and a hundred megabytes."""
    assert "torch" in loaded["modules"]
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & set(loaded["modules"])
