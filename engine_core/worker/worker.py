"""One worker: a device, the model on it, its KV cache and the state of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine_core.config import CacheSize, EngineConfig
from engine_core.errors import OutOfMemoryError
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.base import CausalLM
from engine_core.platforms.base import Platform
from engine_core.platforms.memory import Profile, require_room_for_weights, size
from engine_core.platforms.selector import choose_platform
from engine_core.step import StepPlan
from engine_core.worker.dummy_batches import attention_seconds, warm_up_steps
from engine_core.worker.fingerprint import numerics_digest
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.model_runner import ModelRunner, PendingStep
from engine_core.worker.self_test import is_bitwise_stable


class Worker:
    """Call ``init_device``, ``load_model``, ``profile`` (unless the cache's size is given), ``allocate``, ``warm_up``,
    then ``launch`` each plan, in order.
    """

    device: Platform
    model: CausalLM
    bytes_per_block: int
    model_digest: str
    unwritten_cache_bytes: int
    """What the KV cache will still take of the host's memory as it fills; known after ``allocate``."""
    hashing_seconds: float
    """How long hashing the weights took while they were loaded."""
    largest_step_seconds: float
    """About how long the largest step takes; known after ``warm_up``."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        """Remember what to run; nothing is taken yet."""
        scheduler = config.scheduler
        self.checkpoint = checkpoint
        self.limits = BatchLimits(
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=checkpoint.spec.max_model_len,
            block_size=config.cache.block_size,
        )
        self._config = config
        self._runner: ModelRunner | None = None
        self._kv_caches: list[torch.Tensor] = []

    def init_device(self) -> None:
        """Choose the device, and see how much memory there is. Raises ``ConfigError``."""
        self.device = choose_platform(self._config.device, self.checkpoint, self.limits)

    def load_model(self, on_progress: Callable[[int, int], None]) -> None:
        """Read the weights; ``on_progress`` takes bytes done and in all.

        Raises ``CheckpointError``, or ``OutOfMemoryError`` when they are larger than the memory there is.
        """
        checkpoint, device, digest = self.checkpoint, self.device, WeightsDigest()
        model = make_model(checkpoint, device.attention, device.layers, device.torch_device, device.quant_method)
        kept_as = checkpoint.quantization or checkpoint.spec.dtype
        require_room_for_weights(model.expected_weight_bytes, kept_as, device.usable)
        load_weights(model, checkpoint, device.torch_device, on_progress, digest)
        self.model = model
        self.model_digest, self.hashing_seconds = checkpoint.digest(digest), digest.seconds
        self.bytes_per_block = device.attention.bytes_per_block(self.model.kv_cache_spec(self.limits.block_size))
        device.trim()

    def numerics(self) -> str:
        """Equal for workers that compute equal tokens."""
        spec = self.model.kv_cache_spec(self.limits.block_size)
        attention, layers = self.device.attention.numerics(spec), self.device.layers.numerics()
        return numerics_digest(self.model_digest, self.checkpoint.dtype, self.device.numerics(), attention, layers)

    def profile(self) -> Profile:
        """Measure the memory of the largest step."""
        return self.device.profile(self.model, self._new_batch)

    def allocate(self, cache_size: CacheSize) -> None:
        """Make room for the KV cache and the batch.

        Memory of a size that was told is taken now, so that no step waits for it; else, on a CPU, it is taken as it is
        first written. Raises ``OutOfMemoryError``.
        """
        spec, blocks = self.model.kv_cache_spec(self.limits.block_size), cache_size.num_blocks
        try:
            now = self._config.cache.kv_cache_memory_bytes is not None
            self._kv_caches = self.device.allocate(spec, blocks, now)
        except RuntimeError as error:
            raise OutOfMemoryError(
                f"the system refused {size(blocks * cache_size.bytes_per_block)} for the KV cache: {error}. Lower "
                f"--gpu-memory-utilization or --kv-cache-memory-bytes."
            ) from error
        filling = self.device.uses_host_memory and not now
        self.unwritten_cache_bytes = blocks * cache_size.bytes_per_block if filling else 0
        self._runner = self.device.runner(self.model, self._new_batch())

    def warm_up(self) -> str:
        """Generate a few tokens; then make what steps would otherwise wait for. What that was, for a person."""
        assert self._runner is not None
        prompt, *steps, release = warm_up_steps(self.limits, self.model.vocab_size)
        start = time.perf_counter()
        self.launch(prompt).result()
        seconds_per_token = (time.perf_counter() - start) / prompt.total_tokens
        for plan in steps:
            self.launch(plan).result()
        self._runner.batch.update(release)
        made = self.device.prepare(self._runner, self._new_batch, self._kv_caches)
        estimate = seconds_per_token * self.limits.max_num_batched_tokens
        self.largest_step_seconds = (self.device.largest_step_seconds or estimate) + self._attention_seconds()
        return made

    def _attention_seconds(self) -> float:
        device, spec = self.device, self.model.kv_cache_spec(self.limits.block_size)
        num_heads = self.checkpoint.config.num_heads
        return attention_seconds(device.attention, spec, num_heads, self.limits, device.torch_device)

    def is_bitwise_stable(self) -> bool:
        """Whether a row's bits do not depend on its step, tried on a layer of each kind and the head."""
        device = self.device
        return device.batch_invariant and is_bitwise_stable(
            self.model.one_layer_of_each_kind(), device.attention, self.limits, device.torch_device
        )

    def launch(self, plan: StepPlan) -> PendingStep:
        """Begin to compute one step; needs ``allocate``."""
        if self._runner is None:
            raise RuntimeError("the worker has no KV cache: it was not started, or is closed")
        self.device.make_current()
        return self._runner.launch(plan, self._kv_caches)

    def close(self) -> None:
        """Free weights, cache and batch. Idempotent."""
        self._runner = None
        self._kv_caches = []
        if hasattr(self, "model"):
            del self.model
            self.device.trim()

    def _new_batch(self) -> InputBatch:
        limits = self.limits
        try:
            return InputBatch(limits, self.model.vocab_size, self.checkpoint.spec.eos_token_ids)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the system refused the memory for a batch of {limits.max_num_seqs} sequences of up to "
                f"{limits.max_model_len} tokens. Lower --max-num-seqs or --max-model-len."
            ) from error
