"""Which device is chosen, with which attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from engine_core.config import DeviceConfig, LoadConfig, ModelConfig
from engine_core.errors import ConfigError
from engine_core.kv_cache_interface import MLAAttentionSpec
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.ops.torch import TorchBackend
from engine_core.platforms import cpu
from engine_core.platforms.selector import choose_platform
from engine_core.quantization.awq import AwqConfig
from engine_core.worker.input_batch import BatchLimits

ROOT = Path(__file__).resolve().parents[3]
LIMITS = BatchLimits(8, 64, 128, 16)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(ModelConfig(model=str(ROOT / "checkpoints" / "tiny")), LoadConfig())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_takes_the_cpu(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match=r"device='cuda' is not usable: expected cpu or auto"):
        choose_platform(DeviceConfig(device="cuda"), checkpoint, LIMITS)
    assert choose_platform(DeviceConfig(num_threads=1), checkpoint, LIMITS).torch_device.type == "cpu"


def test_attention_that_is_asked_for_on_a_cpu(checkpoint: Checkpoint) -> None:
    for asked, described in (("torch", "attention by torch, as asked"), ("native", "attention by native kernels")):
        config = DeviceConfig(device="cpu", num_threads=1, attention_backend=asked)
        assert described in choose_platform(config, checkpoint, LIMITS).describe()
    with pytest.raises(ConfigError, match=r"attention_backend='triton'.*native or torch on a CPU"):
        choose_platform(DeviceConfig(device="cpu", attention_backend="triton"), checkpoint, LIMITS)
    odd = replace(checkpoint, config=replace(checkpoint.config, head_dim=1040))
    with pytest.raises(ConfigError, match=r"attention_backend='native'.*head_dim up to 1024"):
        choose_platform(DeviceConfig(device="cpu", attention_backend="native"), odd, LIMITS)


def test_a_limit_of_addresses_bounds_the_memory_of_each_rank(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DeviceConfig(device="cpu", num_threads=1)
    monkeypatch.setattr(cpu, "usable_memory", lambda: 10 << 30)
    platform = choose_platform(config, checkpoint, LIMITS)
    assert (platform.usable, platform.limit) == (10 << 30, "")
    monkeypatch.setattr(cpu, "address_limit", lambda: 6 << 30)
    monkeypatch.setattr(cpu, "addressable_memory", lambda: 4 << 30)
    platform = choose_platform(config, checkpoint, LIMITS)
    assert platform.usable == 4 << 30
    assert platform.limit == "its address space is limited to 6.00 GiB: raise `ulimit -v`"


def test_a_cache_of_8_bits_is_named_or_refused(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DeviceConfig(device="cpu", num_threads=1)
    assert "KV cache in int8" in choose_platform(config, checkpoint, LIMITS, kv_cache_dtype="int8").describe()
    monkeypatch.setattr(type(checkpoint.config), "cache_specs", (MLAAttentionSpec(1040, 64),) * 5)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='int8'.*auto for latents of more than 1024 numbers"):
        choose_platform(config, checkpoint, LIMITS, kv_cache_dtype="int8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='fp8'.*auto on a GPU"):
        choose_platform(DeviceConfig(device="cuda"), checkpoint, LIMITS, kv_cache_dtype="fp8")


def test_weights_that_torch_computes_with_are_said_to_be_expanded(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they take the memory of the model's type, whatever the checkpoint has."""
    stored = replace(checkpoint, stored_quantization=AwqConfig({"bits": 4, "group_size": 128, "zero_point": True}, {}))
    assert stored.kept_as == f"{checkpoint.spec.dtype}, weights in AWQ, 4 bits in groups of 128"
    config = DeviceConfig(device="cpu", num_threads=1)
    assert "expanded" not in choose_platform(config, stored, LIMITS).describe()
    monkeypatch.setattr(cpu, "choose_ops", Mock(return_value=(TorchBackend(), "layers by torch: as asked")))
    expanded = f"layers by torch: as asked; weights expanded to {checkpoint.spec.dtype}"
    assert expanded in choose_platform(config, stored, LIMITS).describe()
