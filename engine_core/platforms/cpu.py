"""The CPU as a device: its threads, its memory as the operating system counts it, kernels compiled per size."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.selector import choose_attention
from engine_core.config import DeviceConfig
from engine_core.kernels.memory import take_now
from engine_core.layers.selector import choose_layers
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.base import CausalLM
from engine_core.platforms.base import NewBatch, Platform
from engine_core.platforms.host_memory import measure_peak, resident_memory, trim, usable_cpus, usable_memory
from engine_core.platforms.memory import MemoryProfile, request_memory, size
from engine_core.sampling.sampler import Sampler, SamplingRows
from engine_core.worker.dummy_batches import largest_step, row_counts, small_step, step_seconds
from engine_core.worker.fingerprint import cpu_numerics
from engine_core.worker.forward import HostForward
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.model_runner import ModelRunner, SampledTokens

# For layers that compile per size alone, which native ones do not.
_PROBED_SIZES = 4
"""Of how many sizes of steps the kernels are made to see what memory they take."""
_WARM_UP_SECONDS = 0.5
"""How long kernels are made before serving; those still missing are made when first needed."""


class CpuPlatform(Platform):
    """All cores that this process may use, or as many as the options say."""

    batch_invariant = True
    is_asynchronous = False
    uses_host_memory = True

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits) -> None:
        """Set torch's threads, and choose attention and layers. Raises ``ConfigError``."""
        self.torch_device = torch.device("cpu")
        self._limits = limits
        threads = config.num_threads
        torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()) if threads is None else threads)
        self.usable = usable_memory()
        self.request_memory = request_memory(self.usable)
        shape, dtype = checkpoint.shape, checkpoint.dtype
        self.attention, attention = choose_attention(shape.head_dim, dtype, config.attention_backend)
        self.layers, layers = choose_layers(shape.widths, shape.head_dim, dtype, checkpoint.quantization)
        self._chosen = f"{attention}; {layers}"

    def describe(self) -> str:
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{self.torch_device}, {capability}, {torch.get_num_threads()} threads; {self._chosen}"

    def numerics(self) -> Sequence[str]:
        return cpu_numerics()

    def runner(self, model: CausalLM, batch: InputBatch) -> ModelRunner:
        sampler = Sampler(batch.sampling, model.vocab_size)

        def sample(logits: torch.Tensor, rows: SamplingRows) -> SampledTokens:
            output = sampler.sample(logits.numpy(), rows)
            return SampledTokens(torch.from_numpy(output.token_ids), lambda: output)

        return ModelRunner(model, batch, HostForward(model), sample)

    def allocate(self, spec: KVCacheSpec, num_blocks: int, now: bool) -> list[torch.Tensor]:
        wanted, usable = num_blocks * self.attention.bytes_per_block(spec), usable_memory()
        if now and wanted > usable:
            raise RuntimeError(f"it has {size(usable)}")
        caches = self.attention.allocate(spec, num_blocks, self.torch_device)
        for cache in caches if now else ():
            take_now(cache)
        return caches

    def profile(self, model: CausalLM, new_batch: NewBatch) -> MemoryProfile:
        """Run the largest step through one layer, head and sampler, and read the peak.

        All layers are alike and leave nothing behind but their output, so one tells the peak of them all, and the time.
        """
        limits, cut, batch = self._limits, model.first_layers(1), new_batch()
        runner = self.runner(cut, batch)
        kv_caches = self.attention.allocate(cut.kv_cache_spec(limits.block_size), 1, self.torch_device)
        plan = largest_step(limits, model.vocab_size, Sampler.rows_at_once(model.vocab_size))
        resident = resident_memory()
        num_layers = model.kv_cache_spec(limits.block_size).num_layers
        with measure_peak() as peak:
            self.largest_step_seconds = step_seconds(runner, plan, kv_caches, num_layers)
        kernels = 0
        if self.layers.compiles_per_size:
            kernels = _kernel_memory(runner, kv_caches, limits, model.vocab_size, plan.seq_ids)
        return MemoryProfile(
            usable=self.usable,
            resident=resident,
            weights=model.weight_bytes,
            step_peak=peak.growth,
            kernels=kernels,
            batch_state=batch.nbytes,
            requests=self.request_memory.logprob_bytes + self.request_memory.id_bytes,
        )

    def prepare(self, runner: ModelRunner, new_batch: NewBatch, kv_caches: list[torch.Tensor]) -> str:
        """Where a size of a step has kernels of its own, make those that decoding needs.

        Small batches come first, for half a second: a kernel takes about a millisecond, which matters beside the step
        of a small model, and for that the time is enough.
        """
        if not self.layers.compiles_per_size:
            return ""
        model, limits = runner.model.first_layers(1), self._limits
        first_layer = self.runner(model, new_batch())
        end = time.monotonic() + _WARM_UP_SECONDS
        live: list[int] = []
        for rows in row_counts(limits):
            if rows > limits.max_num_seqs or time.monotonic() > end:
                break
            plan = small_step(limits, model.vocab_size, rows, released=live)
            first_layer.launch(plan, kv_caches[:1]).result()
            live = plan.seq_ids
        return ""

    def make_current(self) -> None:
        return

    def trim(self) -> None:
        trim()


def _kernel_memory(
    runner: ModelRunner, kv_caches: list[torch.Tensor], limits: BatchLimits, vocab_size: int, live: list[int]
) -> int:
    """Bytes that kernels for steps of other sizes will take, by what a few of them take.

    oneDNN makes a kernel for each shape of a linear and each (padded) number of rows, and keeps it. Steps of up to
    ``max_num_seqs`` rows may need one of the head too, others those of a layer alone.
    """
    sizes = row_counts(limits)
    decodes = sum(rows <= limits.max_num_seqs for rows in sizes)
    total = 0
    for group in (sizes[:decodes], sizes[decodes:]):
        probed = group[1 : 1 + _PROBED_SIZES]
        trim()
        before = resident_memory()
        for rows in probed:
            plan = small_step(limits, vocab_size, rows, released=live)
            runner.launch(plan, kv_caches).result()
            live = plan.seq_ids
        trim()
        grown = max(0, resident_memory() - before)
        total += grown * len(group) // max(1, len(probed))
    return total
