"""What a GPU is refused for, and the arithmetic of its memory: all that needs none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_core.config import DeviceConfig, LoadConfig, ModelConfig
from engine_core.errors import ConfigError, OutOfMemoryError
from engine_core.loading.checkpoint import Checkpoint, open_checkpoint
from engine_core.worker.batch import BatchLimits
from engine_core.worker.cuda import check_gpu
from engine_core.worker.cuda_memory import CudaMemoryProfile, graphs_estimate, suggestion
from engine_core.worker.device_choice import choose_device

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
PROFILE = CudaMemoryProfile(
    total=80 * GIB, free_at_start=79 * GIB, taken=17 * GIB, weights=16 * GIB, step_peak=2 * GIB, graphs=1 * GIB
)
LIMITS = BatchLimits(8, 64, 128, 16)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(ModelConfig(model=str(ROOT / "checkpoints" / "tiny")), LoadConfig())


def test_a_gpu_that_can_compute_the_model_is_taken(checkpoint: Checkpoint) -> None:
    check_gpu("H200", (9, 0), DeviceConfig(device="cuda", attention_backend="triton"), checkpoint, True)


@pytest.mark.parametrize(
    ("capability", "options", "changes", "has_triton", "option", "said"),
    [
        ((7, 5), {}, {}, True, "device", "compute capability 7.5, and 8.0 is needed"),
        ((9, 0), {}, {}, False, "device", "triton is not installed"),
        ((9, 0), {}, {"quantization": "int8"}, True, "quantization", "or --device cpu"),
    ],
)
def test_refusals_name_the_option(
    checkpoint: Checkpoint,
    capability: tuple[int, int],
    options: dict[str, str],
    changes: dict[str, str],
    has_triton: bool,
    option: str,
    said: str,
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check_gpu("a GPU", capability, DeviceConfig(**options), replace(checkpoint, **changes), has_triton)
    assert refused.value.option == option


def test_heads_that_no_kernel_computes_are_refused(checkpoint: Checkpoint) -> None:
    wide = replace(checkpoint, shape=replace(checkpoint.shape, head_dim=320))
    with pytest.raises(ConfigError, match="heads of 320"):
        check_gpu("H200", (9, 0), DeviceConfig(), wide, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_takes_the_cpu(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match=r"device='cuda' is not usable: expected cpu or auto"):
        choose_device(DeviceConfig(device="cuda"), checkpoint, LIMITS)
    assert choose_device(DeviceConfig(num_threads=1), checkpoint, LIMITS).torch_device.type == "cpu"


def test_attention_that_is_asked_for_on_a_cpu(checkpoint: Checkpoint) -> None:
    for asked, described in (("torch", "attention by torch, as asked"), ("native", "attention by native kernels")):
        config = DeviceConfig(device="cpu", num_threads=1, attention_backend=asked)
        assert described in choose_device(config, checkpoint, LIMITS).describe()
    with pytest.raises(ConfigError, match=r"attention_backend='triton'.*the device is a CPU"):
        choose_device(DeviceConfig(device="cpu", attention_backend="triton"), checkpoint, LIMITS)
    odd = replace(checkpoint, shape=replace(checkpoint.shape, head_dim=24))
    with pytest.raises(ConfigError, match=r"attention_backend='native'.*heads of 24"):
        choose_device(DeviceConfig(device="cpu", attention_backend="native"), odd, LIMITS)


def test_what_is_left_for_the_cache() -> None:
    assert PROFILE.left(0.9) == 72 * GIB - (17 + 2 + 1) * GIB
    assert PROFILE.overhead_per_block == 0
    for part in ("0.9", "72.00 GiB", "80.00", "weights take 16.00 GiB", "libraries 1.00", "step 2.00", "about 1.00"):
        assert part in PROFILE.describe(0.9)


def test_memory_that_others_have_is_not_counted_on() -> None:
    taken = replace(PROFILE, free_at_start=60 * GIB)
    assert taken.left(0.75) == 40 * GIB
    with pytest.raises(OutOfMemoryError, match=r"--gpu-memory-utilization 0\.9 asks for 72\.00 GiB .* most 0\.75"):
        taken.left(0.9)


def test_graphs_and_what_is_left_at_the_end() -> None:
    assert graphs_estimate(100, 103, count=35) == 100 + 34 * 3
    assert graphs_estimate(100, 90, count=35) == 100
    assert graphs_estimate(0, 0, count=0) == 0
    assert suggestion(1000, 900, 500).endswith("--kv-cache-memory-bytes 600 would use it exactly")
    assert suggestion(1000, 1100, 500).startswith("the budget is exceeded by 100")


def test_a_cpu_engine_needs_no_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
from engine_core.llm import LLM
with LLM(sys.argv[1], dtype="float32", device="cpu", kv_cache_memory_bytes=16 << 20, num_threads=1) as llm:
    print(len(llm.generate([[1, 2, 3]])))
"""
    command = [sys.executable, "-c", code, str(ROOT / "checkpoints" / "tiny")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert result.stdout == "1\n", result.stderr
