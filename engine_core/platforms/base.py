"""The interface of what a worker computes on, which is chosen once, at the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from engine_core.attention.base import AttentionBackend, KVCacheSpec
from engine_core.config import CacheConfig, RequestMemory
from engine_core.distributed.collectives import StageLinks
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import OpsBackend
from engine_core.platforms.kv_cache_size import Profile
from engine_core.quantization.base import QuantizationConfig
from engine_core.worker.input_batch import InputBatch
from engine_core.worker.model_runner import ModelRunner

NewBatch = Callable[[], InputBatch]


class Platform(ABC):
    """A processor with memory, and how models are computed on it."""

    torch_device: torch.device
    attention: AttentionBackend
    ops: OpsBackend
    quantization: QuantizationConfig | None
    """Of linear layers; None: they keep the model's type."""
    usable: int
    """Bytes of memory that this process may take in all, measured before anything was loaded."""

    tensor_transport: str
    """How ranks on such devices exchange tensors, as in ``Rendezvous``."""

    uses_host_memory: bool
    """Whether models and caches are in the host's memory."""

    batch_invariant: bool
    """Whether a row is meant to have the same bits in every step; a self-test has to confirm it."""

    is_asynchronous: bool
    """Whether the device computes on its own: a launch returns before the work is done."""

    warning: str = ""
    """What makes it worse than it could be, and what to do, for a person."""

    largest_step_seconds: float = 0.0
    """How long the largest step takes, once it was run (``profile``, ``prepare``); long contexts take longer."""

    @abstractmethod
    def describe(self) -> str:
        """What it is and how models are computed on it, for a person."""

    @abstractmethod
    def request_memory(self, utilization: float) -> RequestMemory:
        """Host memory set aside for requests where the budget is that share of the memory."""

    @abstractmethod
    def numerics(self) -> Sequence[str]:
        """What decides a result's bits beside attention, operations and the builds of torch and numpy."""

    @abstractmethod
    def make_runner(self, model: LanguageModel, batch: InputBatch, links: StageLinks | None = None) -> ModelRunner:
        """A runner that computes steps on ``batch``; ``links``: to the stages beside ``model``, which else runs alone.

        It has a sampler where this rank samples, and nowhere else: what a sampler changes, ranks share. Raises
        ``ConfigError`` where stages cannot be linked.
        """

    @abstractmethod
    def allocate(self, spec: KVCacheSpec, num_blocks: int, now: bool) -> list[torch.Tensor]:
        """KV caches; ``now``: take all their memory at once, where it would otherwise come as it is first written.

        Raises ``RuntimeError`` when there is too little.
        """

    @abstractmethod
    def profile(self, model: LanguageModel, new_batch: NewBatch) -> Profile:
        """The memory that the model and the largest step take. The step is run, with one block of cache."""

    @abstractmethod
    def prepare(self, runner: ModelRunner, new_batch: NewBatch, kv_caches: list[torch.Tensor]) -> str:
        """Make what steps of ``runner`` would otherwise wait for, once it has computed a few.

        Returns what was made, for a person.
        """

    @abstractmethod
    def computing(self) -> AbstractContextManager[None]:
        """Let this thread compute on it, as the options say. Steps may come from any thread."""

    def memory_left(self, cache: CacheConfig, kv_cache_config: KVCacheConfig) -> str:
        """What is left of the budget when all is ready, and how to use it, for a person; empty where it varies."""
        return ""

    @abstractmethod
    def trim(self) -> None:
        """Return freed memory to the system."""
