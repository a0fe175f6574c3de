"""One worker: a device, the model on it, its KV cache and the state of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.choice import choose_attention
from engine_core.config import CacheSize, EngineConfig
from engine_core.errors import OutOfMemoryError
from engine_core.kernels.memory import take_now
from engine_core.layers.base import Layers
from engine_core.layers.choice import choose_layers
from engine_core.loading.build import build_model, expected_weight_bytes
from engine_core.loading.checkpoint import Checkpoint
from engine_core.models.base import CausalLM
from engine_core.step import StepPlan
from engine_core.worker.batch import BatchLimits, PersistentBatch
from engine_core.worker.dummy_steps import largest_step, row_counts, small_step, warm_up_steps
from engine_core.worker.fingerprint import numerics_fingerprint
from engine_core.worker.host import measure_peak, resident_memory, trim, usable_cpus, usable_memory
from engine_core.worker.memory import MemoryProfile, require_room_for_weights, size
from engine_core.worker.model_runner import LaunchedStep, ModelRunner
from engine_core.worker.self_test import is_bitwise_stable

# For layers that compile per size alone, which native ones do not.
_PROBED_SIZES = 4
"""Of how many sizes of steps the kernels are made to see what memory they take."""
_WARM_UP_SECONDS = 0.5
"""How long kernels are made before serving; those still missing are made when first needed."""


class Worker:
    """Call ``init_device``, ``load_model``, ``profile`` (unless the cache's size is given), ``allocate``, ``warm_up``,
    then ``launch`` each plan, in order.
    """

    device: torch.device
    usable: int
    """Bytes of memory the process may grow to, as it was before loading."""
    model: CausalLM
    bytes_per_block: int
    _attention: AttentionBackend
    _layers: Layers
    _chosen: str
    """How attention and layers are computed, for a person."""

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
        self._batch: PersistentBatch | None = None
        self._runner: ModelRunner | None = None
        self._kv_caches: list[torch.Tensor] = []

    def init_device(self) -> None:
        """Choose the device and its threads, and see how much memory there is."""
        self.device = torch.device("cpu")
        threads = self._config.device.num_threads
        torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()) if threads is None else threads)
        self.usable = usable_memory()
        shape, dtype = self.checkpoint.shape, self.checkpoint.dtype
        self._attention, attention = choose_attention(shape.head_dim, dtype)
        self._layers, layers = choose_layers(shape.widths, shape.head_dim, dtype, self.checkpoint.quantization)
        self._chosen = f"{attention}; {layers}"

    def describe_device(self) -> str:
        """The device, for a person."""
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{self.device}, {capability}, {torch.get_num_threads()} threads; {self._chosen}"

    def load_model(self, on_progress: Callable[[int, int], None]) -> None:
        """Read the weights; ``on_progress`` takes bytes done and in all.

        Raises ``CheckpointError``, or ``OutOfMemoryError`` when they are larger than the memory there is.
        """
        checkpoint = self.checkpoint
        kept_as = checkpoint.quantization or checkpoint.spec.dtype
        require_room_for_weights(expected_weight_bytes(checkpoint), kept_as, self.usable)
        self.model = build_model(self.checkpoint, self._attention, self._layers, self.device, on_progress)
        self.bytes_per_block = self._attention.bytes_per_block(self.model.kv_cache_spec(self.limits.block_size))
        trim()

    def numerics_fingerprint(self) -> str:
        """Equal for workers that compute equal tokens."""
        spec = self.model.kv_cache_spec(self.limits.block_size)
        return numerics_fingerprint(self.checkpoint, self._attention.numerics(spec), self._layers.numerics())

    def profile(self) -> MemoryProfile:
        """Run the largest step through one layer, head and sampler, and read the peak.

        All layers are alike and leave nothing behind but their output, so one tells the peak of them all.
        """
        model = self.model.first_layers(1)
        batch = self._new_batch()
        runner = ModelRunner(model, batch)
        kv_caches = self._allocate(model, num_blocks=1)
        plan = largest_step(self.limits, model.vocab_size)
        resident = resident_memory()
        with measure_peak() as peak:
            runner.launch(plan, kv_caches).result()
        return MemoryProfile(
            usable=self.usable,
            resident=resident,
            weights=self.model.weight_bytes,
            step_peak=peak.growth,
            kernels=self._kernel_memory(runner, kv_caches, plan.seq_ids) if self._layers.compiles_per_size else 0,
            batch_state=batch.nbytes,
        )

    def _kernel_memory(self, runner: ModelRunner, kv_caches: list[torch.Tensor], live: list[int]) -> int:
        """Bytes that kernels for steps of other sizes will take, by what a few of them take.

        oneDNN makes a kernel for each shape of a linear and each (padded) number of rows, and keeps it. Steps of up to
        ``max_num_seqs`` rows may need one of the head too, others those of a layer alone.
        """
        sizes = row_counts(self.limits)
        decodes = sum(rows <= self.limits.max_num_seqs for rows in sizes)
        total = 0
        for group in (sizes[:decodes], sizes[decodes:]):
            probed = group[1 : 1 + _PROBED_SIZES]
            trim()
            before = resident_memory()
            for rows in probed:
                plan = small_step(self.limits, self.model.vocab_size, rows, released=live)
                runner.launch(plan, kv_caches).result()
                live = plan.seq_ids
            trim()
            grown = max(0, resident_memory() - before)
            total += grown * len(group) // max(1, len(probed))
        return total

    def allocate(self, cache_size: CacheSize) -> None:
        """Make room for the KV cache and the batch.

        Memory of a size that was told is taken now, so that no step waits for it; else it is taken as it is first
        written. Raises ``OutOfMemoryError``.
        """
        wanted = cache_size.num_blocks * cache_size.bytes_per_block
        told = self._config.cache.kv_cache_memory_bytes is not None
        try:
            if told and wanted > usable_memory():
                raise RuntimeError(f"it has {size(usable_memory())}")
            self._kv_caches = self._allocate(self.model, cache_size.num_blocks)
            for cache in self._kv_caches if told else ():
                take_now(cache)
        except RuntimeError as error:
            raise OutOfMemoryError(
                f"the system refused {size(wanted)} for the KV cache: {error}. Lower --gpu-memory-utilization or "
                f"--kv-cache-memory-bytes."
            ) from error
        self._batch = self._new_batch()
        self._runner = ModelRunner(self.model, self._batch)

    def warm_up(self) -> None:
        """Generate a few tokens; then, where a size of a step has kernels of its own, make those that decoding needs,
        so that requests do not wait for them.

        Small batches come first, for half a second: a kernel takes about a millisecond, which matters beside the step
        of a small model, and for that the time is enough.
        """
        assert self._batch is not None
        *steps, release = warm_up_steps(self.limits, self.model.vocab_size)
        for plan in steps:
            self.launch(plan).result()
        self._batch.update(release)
        if not self._layers.compiles_per_size:
            return
        runner = ModelRunner(self.model.first_layers(1), self._new_batch())
        end = time.monotonic() + _WARM_UP_SECONDS
        live: list[int] = []
        for rows in row_counts(self.limits):
            if rows > self.limits.max_num_seqs or time.monotonic() > end:
                return
            plan = small_step(self.limits, self.model.vocab_size, rows, released=live)
            runner.launch(plan, self._kv_caches[:1]).result()
            live = plan.seq_ids

    def is_bitwise_stable(self) -> bool:
        """Whether a row's bits do not depend on its step, tried on the first layer and the head."""
        return is_bitwise_stable(self.model.first_layers(1), self._attention, self.limits.block_size, self.device)

    @property
    def is_asynchronous(self) -> bool:
        """Whether ``launch`` returns before the step is computed."""
        return self.device.type != "cpu"

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Begin to compute one step; needs ``allocate``."""
        if self._runner is None:
            raise RuntimeError("the worker has no KV cache: it was not started, or is closed")
        return self._runner.launch(plan, self._kv_caches)

    def close(self) -> None:
        """Free weights, cache and batch. Idempotent."""
        self._runner = self._batch = None
        self._kv_caches = []
        if hasattr(self, "model"):
            del self.model
            trim()

    def _new_batch(self) -> PersistentBatch:
        return PersistentBatch(self.limits, self.model.vocab_size, self.checkpoint.spec.eos_token_ids)

    def _allocate(self, model: CausalLM, num_blocks: int) -> list[torch.Tensor]:
        return self._attention.allocate(model.kv_cache_spec(self.limits.block_size), num_blocks, self.device)
