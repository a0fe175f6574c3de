"""Chooses a worker's device: what the options name, else the best available."""

from __future__ import annotations

import torch

from engine_core.config import DeviceConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelLibrary
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.platforms.base import Platform
from engine_core.platforms.cpu import CpuPlatform
from engine_core.worker.input_batch import BatchLimits


def is_for_cpu(config: DeviceConfig) -> bool:
    """Whether ``config`` asks for a CPU, or falls back to it because there is no GPU."""
    return config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())


def choose_platform(
    config: DeviceConfig,
    checkpoint: Checkpoint,
    limits: BatchLimits,
    library: KernelLibrary | None = None,
    rank: Rank | None = None,
    kv_cache_dtype: str = "auto",
) -> Platform:
    """The device that ``config`` asks for, or a ``rank``'s share of it.

    Raises ``ConfigError`` if the device is missing or cannot compute the model. GPU modules are imported only for
    GPUs.
    """
    if is_for_cpu(config):
        library = library or KernelLibrary(config.kernel_cache_dir)
        return CpuPlatform(config, checkpoint, limits, library, rank or Rank(), kv_cache_dtype)
    if not torch.cuda.is_available():
        built = torch.version.cuda
        problem = "this torch is built without CUDA" if built is None else f"torch, built for CUDA {built}, sees no GPU"
        raise ConfigError("device", config.device, f"cpu or auto, because {problem}")
    if kv_cache_dtype != "auto":
        raise ConfigError("kv_cache_dtype", kv_cache_dtype, "auto on a GPU: only the CPU's kernels read 8-bit caches")
    from engine_core.platforms.cuda import CudaPlatform

    return CudaPlatform(config, checkpoint, limits, rank or Rank())
