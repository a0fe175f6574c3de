"""A GPU whose kernels run on the CPU, under Triton's interpreter: everything of the engine's path on GPUs but the card.

Import it only where TRITON_INTERPRET was 1 before Triton was imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton.runtime import interpreter

from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel
from engine_core.config import DeviceConfig
from engine_core.distributed.ranks import Rank
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.ops.gpu import GpuBackend
from engine_core.platforms import cuda
from engine_core.platforms.base import Platform
from engine_core.platforms.selector import choose_platform, is_for_cpu
from engine_core.worker import self_test, worker
from engine_core.worker.input_batch import BatchLimits
from tests.engine_core.attention.sequences import CPU
from tests.engine_core.kernels.interpreted.libraries import Library

_PROCESSORS = 2
_MEMORY = 8 << 30
_CARD = SimpleNamespace(name="an interpreter", major=9, minor=0, multi_processor_count=_PROCESSORS)
_AS_TOLD: dict[str, Callable[..., Any]] = {
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "get_device_properties": lambda device=None: _CARD,
    "mem_get_info": lambda device=None: (_MEMORY, _MEMORY),
    "memory_reserved": lambda device=None: 0,
    "max_memory_reserved": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
}
"""What the platform asks torch about its GPU."""


class Replayed:
    """A graph that is its function."""

    replays = 0

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def replay(self) -> None:
        Replayed.replays += 1
        self.function()


class Recorder:
    """In the place of ``CudaGraphRecorder``."""

    def record(self, function: Callable[[], None]) -> Replayed:
        function()
        return Replayed(function)


class InterpretedDevice(cuda.CudaPlatform):
    """A GPU but for its memory and its graphs."""

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, *_: object) -> None:
        super().__init__(config, checkpoint, limits, Rank())
        self.torch_device = CPU
        self.ops = GpuBackend(_PROCESSORS, config.deterministic, CPU)

    def _run_largest_step(self, *_: object) -> float:
        """An interpreter takes seconds for it."""
        return 0.0


class FlashInferDevice(InterpretedDevice):
    """With attention that is planned on the host."""

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, *_: object) -> None:
        super().__init__(config, checkpoint, limits)
        shape = checkpoint.config
        heads = HeadsOfModel(shape.num_heads, shape.num_kv_heads, shape.head_dim, checkpoint.dtype)
        pages = limits.max_blocks_per_table
        self.attention = FlashInferAttention(Library, heads, limits.block_size, pages, CPU, workspace=16)
        self.batch_invariant = False


def install(
    patch: pytest.MonkeyPatch,
    device: type[InterpretedDevice] = InterpretedDevice,
    lengths: tuple[int, int, int] = (18, 1, 6),
) -> None:
    """Until ``patch`` is undone, engines that ask for a GPU have ``device``, whose self-test takes ``lengths``: by
    default as little as crosses the end of a block.
    """

    def choose(config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, *others: Any) -> Platform:
        if is_for_cpu(config):
            return choose_platform(config, checkpoint, limits, *others)
        return device(config, checkpoint, limits)

    for name, function in _AS_TOLD.items():
        patch.setattr(torch.cuda, name, function)
    patch.setattr(torch, "mm", _product)
    patch.setattr(cuda, "CudaGraphRecorder", Recorder)
    patch.setattr(worker, "choose_platform", choose)
    patch.setattr(self_test, "_LENGTHS", lengths)


def mend_interpreter(patch: pytest.MonkeyPatch) -> None:
    """Until ``patch`` is undone, Triton's interpreter computes as a GPU does, with any numpy."""
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # numpy 2.5 makes no integer of an array of one

    patch.setattr(interpreter, "_patch_lang_tensor", patched)
    patch.setattr(np, "matmul", _by_rows)


def _by_rows(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: npt.DTypeLike = None) -> npt.NDArray[Any]:
    """The interpreter multiplies by numpy, whose library gives a row other bits in another place of a tile on some
    processors, as no GPU does.
    """
    return np.einsum("ij,jk->ik", a.astype(dtype), b.astype(dtype))


_multiply = torch.mm


def _product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """torch's, which has no products into another type on a CPU."""
    if out_dtype is None:
        return _multiply(a, b, **options)
    return _multiply(a.to(out_dtype), b.to(out_dtype), **options)
