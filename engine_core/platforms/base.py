"""The interface of the platform that a worker computes on, chosen once at the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.config import CacheConfig, RequestMemory
from engine_core.distributed.collectives import StageLinks
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import OpsBackend
from engine_core.platforms.kv_cache_size import Profile
from engine_core.quantization.base import QuantizationConfig
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.encoding_profile import EncodingProfile
from engine_core.worker.forward import Forward
from engine_core.worker.input_batch import InputBatch
from engine_core.worker.model_runner import ModelRunner

NewBatch = Callable[[], InputBatch]


class Platform(ABC):
    """A processor with memory, and how models are computed on it."""

    torch_device: torch.device
    attention: AttentionBackend
    ops: OpsBackend
    quantization: QuantizationConfig | None
    """Of linear layers; None: in the model's type."""
    usable: int
    """Bytes of memory that this process may use in total, measured before anything was loaded."""

    limit: str = ""
    """What makes ``usable`` less than the machine has, and how to raise it, for a person; empty where nothing does."""

    tensor_transport: str
    """How ranks on these devices exchange tensors, as in ``Rendezvous``."""

    uses_host_memory: bool
    """Whether models and caches are in host memory."""

    batch_invariant: bool
    """Whether a row should have the same bits in every step; a self-test must confirm it."""

    invariance_advice: str = ""
    """What would make it ``batch_invariant``, for a person; empty where nothing would."""

    is_asynchronous: bool
    """Whether launches return before the device has done the work."""

    warning: str = ""
    """Why performance is reduced, and what to do, for a person."""

    largest_step_seconds: float = 0.0
    """Duration of the largest step, once ``profile`` or ``prepare`` ran it; with long contexts it takes longer."""

    encoding: EncodingProfile | None = None
    """What ``profile`` measured of pictures, if it was called and the model encodes any."""

    @abstractmethod
    def describe(self) -> str:
        """The device, and how models are computed on it, for a person."""

    @abstractmethod
    def request_memory(self, utilization: float) -> RequestMemory:
        """Host memory set aside for requests, given the budget's share of the memory."""

    @abstractmethod
    def numerics(self) -> Sequence[str]:
        """What decides a result's bits, besides attention, ops and the builds of torch and numpy."""

    @abstractmethod
    def make_forward(self, model: LanguageModel, links: StageLinks | None = None) -> Forward:
        """What runs ``model`` here; ``links`` as in ``make_runner``."""

    @abstractmethod
    def make_runner(self, model: LanguageModel, batch: InputBatch, links: StageLinks | None = None) -> ModelRunner:
        """A runner that computes steps on ``batch``; ``links``: to the neighbouring stages, if any.

        Only on the rank that samples does it have a sampler, as ranks share the state that a sampler changes. Raises
        ``ConfigError`` where stages cannot be linked.
        """

    @abstractmethod
    def allocate(self, model: LanguageModel, kv_cache_config: KVCacheConfig, now: bool) -> Caches:
        """The model's caches; ``now``: take all memory at once, even where it would otherwise be taken on first write.

        Raises ``RuntimeError`` if there is not enough memory.
        """

    @abstractmethod
    def profile(self, model: LanguageModel, new_batch: NewBatch, drafter: Drafter | None = None) -> Profile:
        """Measure the memory of the model and of the largest step, which is run with one block and one slot.

        ``drafter``: has loaded its weights here, too, and drafts behind the step.
        """

    @abstractmethod
    def prepare(self, runner: ModelRunner, new_batch: NewBatch, caches: Caches) -> str:
        """Prepare what the steps of ``runner`` would otherwise wait for, after it has computed a few.

        Returns what was prepared, for a person.
        """

    @abstractmethod
    def computing(self) -> AbstractContextManager[None]:
        """Set up the calling thread to compute, as the options say. Steps may come from any thread."""

    def memory_left(self, cache: CacheConfig, kv_cache_config: KVCacheConfig) -> str:
        """What is left of the budget once all is ready, and how to use it, for a person; empty where it varies."""
        return ""

    @abstractmethod
    def trim(self) -> None:
        """Return freed memory to the system."""
