"""The interface of what a worker computes on; which one it is, is decided once at the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from engine_core.attention.base import AttentionBackend, KVCacheSpec
from engine_core.config import CacheConfig, RequestMemory
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.layers.base import LayerBackend
from engine_core.models.base import CausalLM
from engine_core.platforms.kv_cache_size import Profile
from engine_core.quantization.base import QuantMethod
from engine_core.worker.input_batch import InputBatch
from engine_core.worker.model_runner import ModelRunner

NewBatch = Callable[[], InputBatch]


class Platform(ABC):
    """A processor with memory, and how models are computed on it."""

    torch_device: torch.device
    attention: AttentionBackend
    layers: LayerBackend
    quant_method: QuantMethod | None
    """Of linear layers; None: they keep the model's type."""
    usable: int
    """Bytes of memory that this process may take in all, as it was before anything was loaded."""

    uses_host_memory: bool
    """Whether models and caches are in the host's memory."""

    request_memory: RequestMemory
    """What is set aside for requests, of the host's memory."""

    batch_invariant: bool
    """Whether a row is meant to have the same bits in every step, as far as a self-test confirms it."""

    is_asynchronous: bool
    """Whether it computes by itself: what it is told to compute returns before that is done."""

    largest_step_seconds: float = 0.0
    """How long the largest step takes, once it was run (``profile``, ``prepare``), but for attention."""

    @abstractmethod
    def describe(self) -> str:
        """What it is and how models are computed on it, for a person."""

    @abstractmethod
    def numerics(self) -> Sequence[str]:
        """What decides a result's bits beside attention, layers and the builds of torch and numpy."""

    @abstractmethod
    def runner(self, model: CausalLM, batch: InputBatch) -> ModelRunner:
        """What computes steps on ``batch``."""

    @abstractmethod
    def allocate(self, spec: KVCacheSpec, num_blocks: int, now: bool) -> list[torch.Tensor]:
        """KV caches; ``now``: all their memory at once, where it would else come as it is first written.

        Raises ``RuntimeError`` when there is not as much.
        """

    @abstractmethod
    def profile(self, model: CausalLM, new_batch: NewBatch) -> Profile:
        """What the model takes, and what the largest step does: it is run, with one block of cache."""

    @abstractmethod
    def prepare(self, runner: ModelRunner, new_batch: NewBatch, kv_caches: list[torch.Tensor]) -> str:
        """Make what steps of ``runner`` would otherwise wait for, once it has computed a few.

        What was made, for a person.
        """

    @abstractmethod
    def make_current(self) -> None:
        """Let this thread compute on it; called before each step, which may come from any thread."""

    def memory_left(self, cache: CacheConfig, kv_cache_config: KVCacheConfig) -> str:
        """What is left of the budget when all is ready, and how to use it, for a person; empty where it varies."""
        return ""

    @abstractmethod
    def trim(self) -> None:
        """Return memory that is free to the system."""
