"""The CPU platform: its threads, and its memory as the operating system counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from engine_core.attention.selector import choose_attention
from engine_core.config import DeviceConfig, RequestMemory
from engine_core.distributed.collectives import StageLinks
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError
from engine_core.forward_context import Caches
from engine_core.kernels.arguments import MAX_HEAD_DIM
from engine_core.kernels.library import KernelLibrary
from engine_core.kernels.memory import take_now
from engine_core.kv_cache_interface import KVCacheConfig, MLAAttentionSpec
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.ops.native import NativeBackend
from engine_core.ops.selector import choose_ops
from engine_core.platforms.base import NewBatch, Platform
from engine_core.platforms.host_memory import (
    address_limit,
    addressable_memory,
    instruction_sets,
    measure_peak,
    resident_memory,
    trim,
    usable_cpus,
    usable_memory,
)
from engine_core.platforms.kv_cache_size import MemoryProfile, request_memory, size
from engine_core.quantization.selector import choose_quantization
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.sampler import Sampler
from engine_core.worker.caches import allocate_caches
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.dummy_batches import Run, largest_step, picture_step, step_seconds
from engine_core.worker.encoding_profile import measure_encoding
from engine_core.worker.forward import HostForward
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.model_runner import PROMPT_LOGPROB_ROWS, ModelRunner
from engine_core.worker.pooling_step import PoolingRunner

_WITHOUT_KERNELS = (
    "Torch computes the model instead: several times slower, and results depend on what else is in the batch. "
    "To use native kernels, install g++ (the package g++ or gcc-c++) if it is missing; if no directory can hold them, "
    "set --kernel-cache-dir to one that belongs to this user; then start again."
)
_KERNELS_NEEDED = "native kernels change that: they need g++, and a folder that this user can write, --kernel-cache-dir"


class CpuPlatform(Platform):
    """All cores this process may use, or as many as the options say."""

    is_asynchronous = False
    uses_host_memory = True

    def __init__(
        self,
        config: DeviceConfig,
        checkpoint: Checkpoint,
        limits: BatchLimits,
        library: KernelLibrary,
        rank: Rank,
        kv_cache_dtype: str = "auto",
    ) -> None:
        """Choose threads, attention and ops. Raises ``ConfigError``.

        Ranks on one host share its memory equally and, unless the options set their number, its threads.
        """
        self.torch_device = torch.device("cpu")
        self._limits = limits
        self._samples = rank.samples
        threads = config.num_threads
        if threads is None:
            threads = max(1, min(torch.get_num_threads(), usable_cpus()) // rank.ranks_on_host)
        self._threads = threads
        self._ranks_on_host = rank.ranks_on_host
        self._limit_memory()
        head_dim, dtype = checkpoint.config.largest_head_dim, checkpoint.dtype
        self.ops, ops = choose_ops(head_dim, dtype, library, int8_activations=checkpoint.int8_activations)
        self.quantization = choose_quantization(
            checkpoint.quantization, checkpoint.stored_quantization, library, checkpoint.group_size
        )
        quantized = ""
        if checkpoint.quantization is not None and self.quantization is not None:
            quantized = self.quantization.describe()
        elif self.quantization is not None and not isinstance(self.ops, NativeBackend):
            quantized = f"weights expanded to {checkpoint.spec.dtype}, as only native kernels multiply quantized ones"
        if kv_cache_dtype != "auto" and not checkpoint.config.caching_layers:
            raise ConfigError(
                "kv_cache_dtype", kv_cache_dtype, "auto for a model without attention: it has no KV cache"
            )
        latents = [spec.kv_lora_rank for spec in checkpoint.config.cache_specs if isinstance(spec, MLAAttentionSpec)]
        if kv_cache_dtype != "auto" and max(latents, default=0) > MAX_HEAD_DIM:
            raise ConfigError("kv_cache_dtype", kv_cache_dtype, f"auto for latents of more than {MAX_HEAD_DIM} numbers")
        self.attention, attention = choose_attention(head_dim, dtype, config.attention_backend, library, kv_cache_dtype)
        self.batch_invariant = self.ops.batch_invariant and self.attention.batch_invariant
        self.tensor_transport = "shm" if isinstance(self.ops, NativeBackend) else "gloo"
        self._chosen = "; ".join(filter(None, (attention, ops, quantized)))
        if library.problem is not None:
            self._chosen = self._chosen.replace(f": {library.problem}", "")  # the warning says it
            self.warning = f"{library.problem}. {_WITHOUT_KERNELS}"
            self.invariance_advice = _KERNELS_NEEDED
        elif self.ops.batch_invariant and not self.attention.batch_invariant:
            self.invariance_advice = "--attention-backend native changes that"

    def _limit_memory(self) -> None:
        """Ranks share the memory of their host; each has an address space of its own."""
        self.usable, addressable = usable_memory() // self._ranks_on_host, addressable_memory()
        if addressable is not None and addressable < self.usable:
            self.usable = addressable
            self.limit = f"its address space is limited to {size(address_limit() or 0)}: raise `ulimit -v`"

    def describe(self) -> str:
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{self.torch_device}, {capability}, {self._threads} threads; {self._chosen}"

    def request_memory(self, utilization: float) -> RequestMemory:
        return request_memory(int(self.usable * utilization))

    def numerics(self) -> Sequence[str]:
        """What decides which loops and kernels (ours, torch's, numpy's) run on this processor."""
        numpy: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
        extensions = numpy["SIMD Extensions"].get("found", [])
        return [*instruction_sets(), torch.backends.cpu.get_cpu_capability(), *extensions]

    def make_forward(self, model: LanguageModel, links: StageLinks | None = None) -> HostForward:
        return HostForward(model, max(self._limits.max_num_seqs, PROMPT_LOGPROB_ROWS), links)

    def make_runner(self, model: LanguageModel, batch: InputBatch, links: StageLinks | None = None) -> ModelRunner:
        if self._limits.pooling is not None:
            return PoolingRunner(model, batch, self.make_forward(model, links), self._samples, self.computing)
        sampler = Sampler(batch.sampling, NumpyOps(model.vocab_size)) if self._samples else None
        return ModelRunner(model, batch, self.make_forward(model, links), sampler)

    def allocate(self, model: LanguageModel, kv_cache_config: KVCacheConfig, now: bool) -> Caches:
        blocks, slots, states = kv_cache_config.num_blocks, kv_cache_config.num_states, model.state_cache_spec
        wanted = blocks * self.attention.bytes_per_block(model.kv_cache_spec(self._limits.block_size))
        wanted += 0 if states is None else slots * states.bytes_per_state
        usable = usable_memory() // self._ranks_on_host
        if now and wanted > usable:
            raise RuntimeError(f"only {size(usable)} are free")
        caches = self._caches(model, blocks, slots)
        if now:  # layers may share memory, which is taken once
            memories = [*caches.kv, *(tensor for state in caches.states for tensor in state.tensors())]
            for memory in {memory.untyped_storage().data_ptr(): memory for memory in memories}.values():
                take_now(memory)
        return caches

    def _caches(self, model: LanguageModel, num_blocks: int, num_states: int) -> Caches:
        return allocate_caches(
            model,
            self.attention,
            self._limits.block_size,
            self.torch_device,
            num_blocks=num_blocks,
            num_states=num_states,
        )

    def profile(self, model: LanguageModel, new_batch: NewBatch, drafter: Drafter | None = None) -> MemoryProfile:
        """Run the largest step through one layer of each kind, head and sampler, and read the peak.

        Layers keep no memory but their output, so one of each kind gives the peak and the time of all.
        """
        limits = self._limits
        runs = []
        for indices in model.layers_by_kind():
            one = model.with_layers(indices[:1])
            runs.append((self.make_runner(one, new_batch()), self._caches(one, 1, 1), len(indices)))
        plan = largest_step(limits, model.vocab_size, NumpyOps.rows_at_once(model.vocab_size))
        resident = resident_memory()
        with measure_peak() as peak:
            self.largest_step_seconds = step_seconds(runs, plan)
            if drafter is not None:
                runs[0][0].rehearse(drafter)
        growth = self._with_pictures(peak.growth, model, runs, plan.seq_ids)
        return MemoryProfile(
            usable=self.usable,
            resident=resident,
            weights=model.weight_bytes,
            draft_weights=0 if drafter is None else drafter.weight_bytes,
            step_peak=growth,
            encoder_cache=0 if self.encoding is None else self.encoding.cache_bytes(limits),
            batch_state=runs[0][0].batch.nbytes + (0 if drafter is None else drafter.kept_bytes),
            limit=self.limit,
        )

    def _with_pictures(self, text: int, model: LanguageModel, runs: Sequence[Run], released: Sequence[int]) -> int:
        """Bytes that steps take with pictures, if they take ``text`` without."""
        if model.vision is None:
            return text
        with measure_peak() as encoding_peak:
            encoding = self.encoding = measure_encoding(model.vision)
        for runner, _, _ in runs:
            runner.encoder_cache.keep(encoding.picture.digest, encoding.encoded)
        with measure_peak() as step_peak:
            seconds = step_seconds(runs, picture_step(self._limits, encoding.picture, model.vocab_size, released))
        self.largest_step_seconds = max(self.largest_step_seconds, seconds)
        return encoding.with_pictures(encoding_peak.growth, max(text, step_peak.growth))

    def prepare(self, runner: ModelRunner, new_batch: NewBatch, caches: Caches) -> str:
        """Nothing to do: no kernel is compiled while serving."""
        return ""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Restores torch's number of threads afterwards: the whole process shares it."""
        before = torch.get_num_threads()
        if before == self._threads:
            yield
            return
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def trim(self) -> None:
        trim()
