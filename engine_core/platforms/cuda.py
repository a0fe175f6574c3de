"""The NVIDIA GPU platform: what a GPU must support, its memory, its graphs."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from engine_core.config import CacheConfig, DeviceConfig, RequestMemory
from engine_core.distributed.collectives import StageLinks
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError, OutOfMemoryError
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import KVCacheConfig, MLAAttentionSpec
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import NewBatch, Platform
from engine_core.platforms.cuda_graphs import CudaGraphRecorder, DeviceForward, rehearsing_adapters
from engine_core.platforms.host_memory import usable_memory
from engine_core.platforms.kv_cache_size import (
    describe_adapters,
    describe_drafts,
    describe_pictures,
    request_memory,
    size,
)
from engine_core.sampling.sampler import Sampler
from engine_core.sampling.torch_ops import TorchOps
from engine_core.worker.caches import allocate_caches, of_layer
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.dummy_batches import Run, largest_step, picture_step, step_seconds
from engine_core.worker.encoding_profile import measure_encoding
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.model_runner import ModelRunner
from engine_core.worker.pooling_step import PoolingRunner

_LARGEST_CONTEXT = 1 << 30
"""Bytes. A context takes 0.3 to 0.7 GiB, depending on GPU and driver."""
_LARGEST_LATENT, _LARGEST_ROPE = 512, 128
_LEAST_CAPABILITY = (8, 0)
"""Ampere's, the first with bfloat16 and asynchronous copies to shared memory."""
COMPILED_CAPABILITIES = ((8, 0), (9, 0))
"""Capabilities for which all kernels were compiled and their code inspected, without a GPU."""


@dataclass(frozen=True, slots=True)
class CudaMemoryProfile:
    """Measurements between loading and allocating; all in bytes."""

    total: int
    """The GPU's memory."""
    free_at_start: int
    """Bytes free at the start, with this process's CUDA context already created."""
    context: int
    """Upper bound of the context."""
    taken: int
    """Taken by this process after loading, besides its context."""
    weights: int
    """The part of ``taken`` that is weights."""
    step_peak: int
    """What the largest step adds."""
    graphs: int
    """Estimate for captured graphs."""
    draft_weights: int = 0
    """The part of ``taken`` that is weights of a drafting model."""
    encoder_cache: int = 0
    """The most that embeddings of pictures take."""
    adapters: int = 0
    """The most that loaded adapters take."""

    def with_adapters(self, nbytes: int) -> Self:
        """The same, with so many bytes set aside for loaded adapters."""
        return replace(self, adapters=nbytes)

    @property
    def overhead_per_block(self) -> int:
        """Nothing: the scheduler's share is in host memory."""
        return 0

    def left(self, utilization: float) -> int:
        """What remains of the budget, a share of ``total``. Raises ``OutOfMemoryError`` if others hold part of it."""
        budget = int(self.total * utilization)
        available = self.free_at_start + self.context
        if budget > available:
            raise OutOfMemoryError(
                f"--gpu-memory-utilization {utilization:g} asks for {size(budget)} of the GPU's {size(self.total)}, "
                f"but only {size(available)} were free at the start. Lower it to at most "
                f"{int(100 * available / self.total) / 100:g}, or end what else uses the GPU."
            )
        return budget - self.context - self.taken - self.step_peak - self.graphs - self.encoder_cache - self.adapters

    def describe(self, utilization: float) -> str:
        """The numbers from which ``left`` is calculated, for a person."""
        return (
            f"the budget is {size(self.total * utilization)}, {utilization:g} (--gpu-memory-utilization) of the GPU's "
            f"{size(self.total)}; weights take {size(self.weights)} (--model, --dtype), "
            f"{describe_drafts(self.draft_weights)}{describe_adapters(self.adapters)}"
            f"the CUDA context up to {size(self.context)}, "
            f"libraries {size(self.taken - self.weights - self.draft_weights)}, the largest step "
            f"{size(self.step_peak)} (--max-num-batched-tokens, --max-num-seqs), "
            f"{describe_pictures(self.encoder_cache)}and CUDA graphs about "
            f"{size(self.graphs)} (--max-num-seqs, --enforce-eager)"
        )


def context_bytes(free: int, total: int) -> int:
    """Upper bound of this process's CUDA context: all memory that is not free at the start, but never more than a
    context takes.
    """
    return min(max(0, total - free), _LARGEST_CONTEXT)


def graphs_estimate(first: int, first_two: int, *, count: int) -> int:
    """Bytes that ``count`` graphs will take if the largest took ``first``, and the two largest ``first_two``.

    The largest allocates the pool; each further graph adds what the driver keeps for it.
    """
    return first + max(0, first_two - first) * (count - 1) if count else 0


def suggestion(budget: int, taken: int, cache_bytes: int) -> str:
    """What is left of ``budget`` once all is ready, and the option that uses all of it, for a person."""
    left = budget - taken
    state = f"{size(left)} of the budget are left" if left >= 0 else f"the budget is exceeded by {size(-left)}"
    return f"{state}: --kv-cache-memory-bytes {max(0, cache_bytes + left)} would use it exactly"


def difference(before: Sequence[int], after: Sequence[int]) -> int:
    """Loss of free memory between two results of ``torch.cuda.mem_get_info``; 0 if others freed more."""
    return max(0, before[0] - after[0])


def check_gpu(
    name: str, capability: tuple[int, int], config: DeviceConfig, checkpoint: Checkpoint, has_triton: bool
) -> None:
    """Raise ``ConfigError``, which names the option, if a GPU cannot compute the model as the options say, or
    ``UnsupportedModelError`` if it cannot at all.
    """
    if capability < _LEAST_CAPABILITY:
        has = ".".join(map(str, capability))
        raise ConfigError(
            "device", "cuda", f"cpu, because {name} has compute capability {has}; 8.0 or higher is needed"
        )
    if not has_triton:
        needed = "cpu, because triton is not installed: install torch built for CUDA, which brings it"
        raise ConfigError("device", "cuda", needed)
    if checkpoint.quantization is not None:
        needed = "no value on a GPU: leave the option out, or set --device cpu"
        raise ConfigError("quantization", checkpoint.quantization, needed)
    if checkpoint.int8_activations:
        raise ConfigError("int8_activations", True, "False on a GPU, whose kernels keep inputs in the model's type")
    for spec in checkpoint.config.cache_specs:
        if spec is None:
            continue
        if isinstance(spec, MLAAttentionSpec):
            _check_latents(spec, checkpoint.dtype)
            continue
        if not 16 <= spec.head_dim <= 256 or spec.head_dim % 16:
            raise ConfigError(
                "device", "cuda", f"cpu, because head_dim={spec.head_dim} is not a multiple of 16 up to 256"
            )


def _check_latents(spec: MLAAttentionSpec, dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        needed = "bfloat16 or float16, as latent attention is not computed in float32 on GPUs"
        raise ConfigError("dtype", "float32", needed)
    for name, width, most in (
        ("kv_lora_rank", spec.kv_lora_rank, _LARGEST_LATENT),
        ("qk_rope_head_dim", spec.qk_rope_head_dim, _LARGEST_ROPE),
    ):
        if not 16 <= width <= most or width % 16:
            raise ConfigError("device", "cuda", f"cpu, because {name}={width} is not a multiple of 16 up to {most}")


def untried(capability: tuple[int, int]) -> str:
    """A warning where the compiled kernels were not inspected for ``capability``; else empty."""
    if capability in COMPILED_CAPABILITIES:
        return ""
    has, known = (
        ", ".join(f"{major}.{minor}" for major, minor in each) for each in ([capability], COMPILED_CAPABILITIES)
    )
    return (
        f"; WARNING: the kernels were compiled and checked for compute capability {known}, and never for {has}: "
        "compare some answers with --device cpu before you rely on it"
    )


class CudaPlatform(Platform):
    """Torch's current GPU."""

    is_asynchronous = True
    uses_host_memory = False
    tensor_transport = "nccl"

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, rank: Rank) -> None:
        """Check what the GPU supports, and measure its free memory; each rank on a host has its own GPU.

        Raises ``ConfigError``.
        """
        if rank.ranks_on_host > 1:
            torch.cuda.set_device(rank.local)
        properties = torch.cuda.get_device_properties()
        capability = (properties.major, properties.minor)
        has_triton = importlib.util.find_spec("triton") is not None
        check_gpu(properties.name, capability, config, checkpoint, has_triton)
        from engine_core.attention.flashinfer import HeadsOfModel
        from engine_core.attention.gpu_selector import Demand, check_attention, choose_gpu_attention
        from engine_core.ops.gpu import GpuBackend

        model = checkpoint.config
        num_kv_heads = max(1, model.num_kv_heads // rank.tp_size)
        heads = HeadsOfModel(model.num_heads // rank.tp_size, num_kv_heads, model.head_dim, checkpoint.dtype)
        demand = Demand(
            heads, limits.block_size, limits.max_model_len, config.deterministic, model.is_plainly_attending
        )
        check_attention(config.attention_backend, demand)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._free_at_start = torch.cuda.mem_get_info()
        self._context = context_bytes(*self._free_at_start)
        self.usable = self._free_at_start[0]
        self._host_usable = usable_memory()
        processors = properties.multi_processor_count
        self.batch_invariant = config.deterministic
        self.invariance_advice = "" if config.deterministic else "--deterministic changes that"
        asked = config.attention_backend
        self.attention, self._attends = choose_gpu_attention(asked, demand, processors, self.torch_device)
        self.ops = GpuBackend(processors, config.deterministic, self.torch_device)
        self.quantization = checkpoint.stored_quantization
        self._limits = limits
        self._samples = rank.samples
        self._eager = config.enforce_eager
        self._graphs_expected: int | None = None
        self._name = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        self._warning = untried(capability)

    def describe(self) -> str:
        products = "own products of matrices" if self.batch_invariant else "products of matrices by cuBLAS"
        steps = "no CUDA graphs" if self._eager else "CUDA graphs"
        gpu = f"{self.torch_device}, {self._name}, CUDA {torch.version.cuda}"
        return f"{gpu}; {self._attends}; {products}; {steps}{self._warning}"

    def request_memory(self, utilization: float) -> RequestMemory:
        """A share of host memory, which does not hold the cache."""
        return request_memory(self._host_usable)

    def numerics(self) -> Sequence[str]:
        return [self._name, str(torch.version.cuda)]

    def make_forward(self, model: LanguageModel, links: StageLinks | None = None) -> DeviceForward:
        if links is not None:
            raise ConfigError("pipeline_parallel_size", 2, "1: stages on GPUs are not linked yet")
        return DeviceForward(model, self._limits, self.torch_device, self.attention)

    def make_runner(self, model: LanguageModel, batch: InputBatch, links: StageLinks | None = None) -> ModelRunner:
        if self._limits.pooling is not None:
            return PoolingRunner(model, batch, self.make_forward(model, links), self._samples, self.computing)
        sampler = Sampler(batch.sampling, TorchOps()) if self._samples else None
        return ModelRunner(model, batch, self.make_forward(model, links), sampler)

    def allocate(self, model: LanguageModel, kv_cache_config: KVCacheConfig, now: bool) -> Caches:
        """Always takes the memory at once."""
        return self._caches(model, kv_cache_config.num_blocks, kv_cache_config.num_states)

    def _caches(self, model: LanguageModel, num_blocks: int, num_states: int) -> Caches:
        return allocate_caches(
            model,
            self.attention,
            self._limits.block_size,
            self.torch_device,
            num_blocks=num_blocks,
            num_states=num_states,
        )

    def profile(self, model: LanguageModel, new_batch: NewBatch, drafter: Drafter | None = None) -> CudaMemoryProfile:
        """Run the largest step through one layer of each kind, head and sampler, and read the allocator's peak."""
        self.trim()
        torch.cuda.reset_peak_memory_stats()
        reserved = torch.cuda.memory_reserved()
        self._run_largest_step(model, new_batch, self._caches(model, 1, 1), drafter)
        peak = torch.cuda.max_memory_reserved() - reserved
        self.trim()
        peak = self._with_pictures(peak, model, new_batch)
        self._graphs_expected = 0 if self._eager else self._estimate_graphs(model)
        return CudaMemoryProfile(
            total=self._free_at_start[1],
            free_at_start=self._free_at_start[0],
            context=self._context,
            taken=self._taken(),
            weights=model.weight_bytes,
            draft_weights=0 if drafter is None else drafter.weight_bytes,
            step_peak=peak + (0 if drafter is None else drafter.kept_bytes),
            graphs=self._graphs_expected,
            encoder_cache=0 if self.encoding is None else self.encoding.cache_bytes(self._limits),
        )

    def _with_pictures(self, text: int, model: LanguageModel, new_batch: NewBatch) -> int:
        """Bytes that steps take with pictures, if they take ``text`` without."""
        if model.vision is None:
            return text
        reserved = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        encoding = self.encoding = measure_encoding(model.vision)
        of_picture = torch.cuda.max_memory_reserved() - reserved
        self.trim()
        reserved = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        runs = self._runs(model, new_batch, self._caches(model, 1, 1))
        for runner, _, _ in runs:
            runner.encoder_cache.keep(encoding.picture.digest, encoding.encoded)
        step_seconds(runs, picture_step(self._limits, encoding.picture, model.vocab_size, ()), torch.cuda.synchronize)
        of_step = torch.cuda.max_memory_reserved() - reserved
        del runs, runner
        self.trim()
        return encoding.with_pictures(of_picture, max(text, of_step))

    def _run_largest_step(
        self, model: LanguageModel, new_batch: NewBatch, caches: Caches, drafter: Drafter | None = None
    ) -> float:
        """Seconds with all layers; the largest step of ``drafter`` follows it."""
        plan = largest_step(self._limits, model.vocab_size, TorchOps.rows_at_once(model.vocab_size))
        runs = self._runs(model, new_batch, caches)
        with rehearsing_adapters(model, self._limits):  # whose kernels and memory the step has, too
            seconds = step_seconds(runs, plan, torch.cuda.synchronize)
        if drafter is not None:
            runs[0][0].rehearse(drafter)
        return seconds

    def _runs(self, model: LanguageModel, new_batch: NewBatch, caches: Caches) -> list[Run]:
        """Only one layer of each kind is run: layers leave nothing but their output."""
        return [
            (
                self.make_runner(model.with_layers(indices[:1]), new_batch()),
                of_layer(caches, model, indices[0]),
                len(indices),
            )
            for indices in model.layers_by_kind()
        ]

    def _taken(self) -> int:
        return difference(self._free_at_start, torch.cuda.mem_get_info())

    def _estimate_graphs(self, model: LanguageModel) -> int:
        """Capture the largest graph, then the two largest: every other graph should take what the second adds."""
        forward = DeviceForward(model, self._limits, self.torch_device, self.attention)
        caches = self._caches(model, 1, 1)
        taken = []
        for count in (1, 2):
            self.trim()
            before = torch.cuda.mem_get_info()
            forward.capture(CudaGraphRecorder(), caches, forward.sizes[-count:])
            taken.append(difference(before, torch.cuda.mem_get_info()))
            forward.release()
        estimate = graphs_estimate(taken[0], taken[1], count=len(forward.sizes))
        del forward, caches
        self.trim()
        return estimate

    def prepare(self, runner: ModelRunner, new_batch: NewBatch, caches: Caches) -> str:
        """Capture graphs, then compile everything else and take the memory of the largest step.

        In this order, because torch returns free memory before a capture. The largest step is run twice, because the
        first run's time includes compilation.
        """
        made = ""
        if not self._eager:
            assert isinstance(runner.forward, DeviceForward)
            before = torch.cuda.mem_get_info()
            runner.forward.capture(CudaGraphRecorder(), caches, runner.forward.sizes)
            taken = difference(before, torch.cuda.mem_get_info())
            largest = runner.forward.sizes[-1]
            made = f"{runner.forward.num_graphs} CUDA graphs of up to {largest} sequences took {size(taken)}"
            if self._graphs_expected is not None:
                made += f", {size(self._graphs_expected)} were expected"
        self._run_largest_step(runner.model, new_batch, caches)
        self.largest_step_seconds = self._run_largest_step(runner.model, new_batch, caches)
        return made

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Each thread has its own current GPU, on which Triton launches."""
        torch.cuda.set_device(self.torch_device)
        return contextlib.nullcontext()

    def memory_left(self, cache: CacheConfig, kv_cache_config: KVCacheConfig) -> str:
        budget = int(self._free_at_start[1] * cache.gpu_memory_utilization)
        return suggestion(budget, self._context + self._taken(), kv_cache_config.nbytes)

    def trim(self) -> None:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # after a kernel fault no memory can be returned
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
