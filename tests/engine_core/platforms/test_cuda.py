"""What a GPU is refused for, and the arithmetic of its memory: all that needs none."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_core.config import CacheConfig, DeviceConfig, LoadConfig, ModelConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError, OutOfMemoryError
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import KVCacheConfig, MLAAttentionSpec
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.platforms.cuda import (
    CudaMemoryProfile,
    CudaPlatform,
    check_gpu,
    context_bytes,
    graphs_estimate,
    suggestion,
)
from engine_core.worker.input_batch import BatchLimits

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
PROFILE = CudaMemoryProfile(
    total=80 * GIB,
    free_at_start=79 * GIB,
    context=GIB // 2,
    taken=17 * GIB,
    weights=16 * GIB,
    step_peak=2 * GIB,
    graphs=1 * GIB,
)
LIMITS = BatchLimits(8, 64, 128, 16)
CACHE = KVCacheConfig(100, 16, 1 << 20)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(ModelConfig(model=str(ROOT / "checkpoints" / "tiny")), LoadConfig())


def test_a_gpu_that_can_compute_the_model_is_taken(checkpoint: Checkpoint) -> None:
    check_gpu("H200", (9, 0), DeviceConfig(device="cuda", attention_backend="triton"), checkpoint, True)


@pytest.mark.parametrize(
    ("capability", "changes", "has_triton", "option", "said"),
    [
        ((7, 5), {}, True, "device", "compute capability 7.5; 8.0 or higher is needed"),
        ((9, 0), {}, False, "device", "triton is not installed"),
        ((9, 0), {"quantization": "int8"}, True, "quantization", "leave the option out, or set --device cpu"),
        ((9, 0), {"int8_activations": True}, True, "int8_activations", "False on a GPU"),
        ((9, 0), {"head_dim": 320}, True, "device", "head_dim=320 is not a multiple of 16 up to 256"),
    ],
)
def test_refusals_name_the_option(
    checkpoint: Checkpoint,
    capability: tuple[int, int],
    changes: dict[str, Any],
    has_triton: bool,
    option: str,
    said: str,
) -> None:
    config = replace(checkpoint.config, head_dim=changes.get("head_dim", checkpoint.config.head_dim))
    changed = replace(
        checkpoint,
        config=config,
        quantization=changes.get("quantization"),
        int8_activations=changes.get("int8_activations", False),
    )
    with pytest.raises(ConfigError, match=said) as refused:
        check_gpu("a GPU", capability, DeviceConfig(), changed, has_triton)
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("rank", "rope", "dtype", "said"),
    [
        (1024, 64, torch.bfloat16, "kv_lora_rank=1024 is not a multiple of 16 up to 512"),
        (512, 24, torch.bfloat16, "qk_rope_head_dim=24 is not a multiple of 16 up to 128"),
        (512, 64, torch.float32, "dtype='float32' is not usable: expected bfloat16 or float16"),
        (512, 64, torch.float16, None),
    ],
)
def test_latents_that_no_kernel_computes_are_refused(
    checkpoint: Checkpoint, rank: int, rope: int, dtype: torch.dtype, said: str | None
) -> None:
    class Latents(type(checkpoint.config)):  # type: ignore[misc]
        cache_specs = (MLAAttentionSpec(rank, rope),)

    fields = {field.name: getattr(checkpoint.config, field.name) for field in dataclasses.fields(checkpoint.config)}
    changed = replace(checkpoint, config=Latents(**fields), dtype=dtype)
    refused = pytest.raises(ConfigError, match=said) if said else contextlib.nullcontext()
    with refused:
        check_gpu("H200", (9, 0), DeviceConfig(), changed, True)


def test_what_is_left_for_the_cache() -> None:
    assert PROFILE.left(0.9) == 72 * GIB - GIB // 2 - (17 + 2 + 1) * GIB
    assert PROFILE.overhead_per_block == 0
    for part in (
        "0.9",
        "72.00 GiB",
        "80.00",
        "weights take 16.00 GiB",
        "context up to 512 MiB",
        "libraries 1.00",
        "step 2.00",
        "about 1.00",
    ):
        assert part in PROFILE.describe(0.9)


def test_memory_that_others_have_is_not_counted_on() -> None:
    taken = replace(PROFILE, free_at_start=60 * GIB)
    assert taken.left(0.75) == 40 * GIB - GIB // 2
    with pytest.raises(OutOfMemoryError, match=r"--gpu-memory-utilization 0\.9 asks for 72\.00 GiB .* most 0\.75"):
        taken.left(0.9)


def test_the_context_is_what_is_not_free_at_the_start() -> None:
    assert context_bytes(free=80 * GIB - 500, total=80 * GIB) == 500
    assert context_bytes(free=60 * GIB, total=80 * GIB) == GIB  # others have the rest
    assert context_bytes(free=80 * GIB, total=80 * GIB) == 0


class FakeCuda:
    """As much of ``torch.cuda`` as a device asks for. A context takes 400 MiB, as soon as anything is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
        self.total, self.used = 80 * GIB, 400 << 20
        self.current: list[torch.device] = []
        properties = SimpleNamespace(
            name="a GPU", major=capability[0], minor=capability[1], multi_processor_count=132, total_memory=self.total
        )
        fakes: dict[str, Callable[..., object]] = {
            "get_device_properties": lambda: properties,
            "current_device": lambda: 3,
            "mem_get_info": lambda: (self.total - self.used, self.total),
            "reset_peak_memory_stats": lambda: None,
            "memory_reserved": lambda: 16 * GIB,
            "max_memory_reserved": lambda: 18 * GIB,
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "set_device": self.current.append,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)


def test_a_context_is_of_the_budget(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is taken, budget and context together never exceed the share that was asked for."""
    cuda = FakeCuda(monkeypatch)
    device = CudaPlatform(DeviceConfig(enforce_eager=True), checkpoint, LIMITS, Rank())
    monkeypatch.setattr(CudaPlatform, "_run_largest_step", lambda *args: None)
    monkeypatch.setattr(CudaPlatform, "_caches", lambda *args: Caches([]))
    cuda.used += 17 * GIB
    model: Any = SimpleNamespace(weight_bytes=16 * GIB, state_cache_spec=None, vision=None)
    profile = device.profile(model, lambda: None)  # type: ignore[arg-type, return-value]
    cache = profile.left(0.5)
    assert cuda.used + profile.step_peak + cache == 40 * GIB
    cuda.used += cache
    assert "2.00 GiB of the budget are left" in device.memory_left(CacheConfig(gpu_memory_utilization=0.5), CACHE)


def test_a_step_is_computed_on_its_device_in_whatever_thread(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch)
    CudaPlatform(DeviceConfig(), checkpoint, LIMITS, Rank()).computing()
    assert cuda.current == [torch.device("cuda", 3)], "the caller's choice of a device stays"


def test_each_of_several_ranks_has_a_device(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    CudaPlatform(DeviceConfig(), checkpoint, LIMITS, Rank(1, 2, ranks_on_host=2, local=1))
    assert cuda.current == [1]


@pytest.mark.parametrize(("capability", "warned"), [((8, 0), False), ((9, 0), False), ((8, 6), True), ((12, 0), True)])
def test_a_gpu_for_which_no_kernel_was_compiled_is_warned_of(
    capability: tuple[int, int], warned: bool, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch, capability)
    told = CudaPlatform(DeviceConfig(), checkpoint, LIMITS, Rank()).describe()
    number = ".".join(map(str, capability))
    assert ("WARNING" in told) == warned
    assert (f"never for {number}: compare some answers" in told) == warned


def test_graphs_and_what_is_left_at_the_end() -> None:
    assert graphs_estimate(100, 103, count=35) == 100 + 34 * 3
    assert graphs_estimate(100, 90, count=35) == 100
    assert graphs_estimate(0, 0, count=0) == 0
    assert suggestion(1000, 900, 500).endswith("--kv-cache-memory-bytes 600 would use it exactly")
    assert suggestion(1000, 1100, 500).startswith("the budget is exceeded by 100")
