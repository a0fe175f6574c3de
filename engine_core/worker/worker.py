"""One worker: a device, the model on it, its KV cache and the state of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from engine_core.config import (
    EngineConfig,
    RequestMemory,
    encoder_cache_tokens,
    encoder_step_tokens,
    for_model,
    require_step_for_pictures,
)
from engine_core.distributed.collectives import StageLinks, TensorCollectives
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous
from engine_core.errors import InvalidRequestError, OutOfMemoryError
from engine_core.forward_context import Caches
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.lora.targets import LoRALimits, LoRATargets
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import RankDigest, TakenBytes, WeightsDigest
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.model_loader.lora_names import named_targets
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import Platform
from engine_core.platforms.kv_cache_size import (
    MemoryProfile,
    Profile,
    require_room_for_angles,
    require_room_for_weights,
    size,
)
from engine_core.platforms.selector import choose_platform, is_for_cpu
from engine_core.step import EncoderPlan, StepPlan
from engine_core.structured_output.compiler import GrammarCompiler, GrammarsUnavailableError
from engine_core.worker.adapters import LoadedAdapters
from engine_core.worker.copied_blocks import copy_blocks
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.drafters.registry import Target, load_drafter, tapped_layers
from engine_core.worker.dummy_batches import attention_seconds, picture_warm_up, warm_up_steps
from engine_core.worker.encoding_profile import measure_encoding
from engine_core.worker.grammars import open_grammars
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.join import join
from engine_core.worker.model_runner import ComputedStep, ModelRunner
from engine_core.worker.numerics import numerics_of
from engine_core.worker.self_test import is_bitwise_stable, is_encoding_stable
from engine_core.worker.step_times import StepTimer
from engine_core.worker.unsound_part import first_unsound_part

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The device of a worker."""

    description: str
    usable_bytes: int
    """Free memory before loading anything."""
    request_memory: RequestMemory
    uses_host_memory: bool
    is_asynchronous: bool
    """Whether ``launch`` only queues a step, which the device computes by itself."""
    warning: str
    """As in ``Platform``."""
    tensor_transport: str
    """As in ``Platform``."""
    invariance_advice: str = ""
    """As in ``Platform``."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The part of the model that a worker has loaded."""

    weight_bytes: int
    num_parameters: int
    """Numbers that the weights consist of."""
    bytes_per_block: int
    """In this worker's KV cache."""
    kv_cache_layout: str
    """As in ``KVCacheConfig``."""
    numerics: str
    """Equal for workers that compute equal tokens with equal weights."""
    model_digest: str | None = None
    """None if there are several ranks, none of which has all weights."""
    hashing_seconds: float = 0.0
    """Time spent on hashing the weights while they were loaded."""
    taken: Sequence[TakenBytes] = ()
    """The parts of the weights that this rank has taken, if it is one of several."""
    layers: str = ""
    """Peculiarities of the layers, for a person."""
    bytes_per_state: int = 0
    """In this worker's layers."""
    draft_weight_bytes: int = 0
    """Of a drafting model, on the rank that samples."""
    grammar_problem: str | None = None
    """Why this rank, which samples, cannot use grammars."""
    lora_targets: LoRATargets | None = None
    """What adapters may add to, in this part of the model; None: nothing."""
    bytes_per_lora: int = 0
    """Of the largest adapter in this part of the model."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The results of a worker's warm-up."""

    made: str
    """Preparations for which steps would otherwise have waited, for a person."""
    largest_step_seconds: float
    encoding_seconds: float
    """Of these, what the pictures take that a step may encode."""
    picture_token_cost: float
    """As in ``ModelSpec``."""
    is_bitwise_stable: bool
    is_sound: bool
    """Whether logits were numbers; unknown, and True, if another rank samples."""
    memory_left: str
    """The rest of the memory budget, and how to use it, for a person."""


@dataclass(frozen=True, slots=True)
class _Pictures:
    """What the warm-up finds out about encoding them."""

    step_seconds: float = 0.0
    """That a step may take for it."""
    seconds_per_token: float = 0.0
    is_sound: bool = True
    """Whether embeddings were numbers."""


_NO_TOKENS = "this model generates no tokens"


def batch_limits(config: EngineConfig, checkpoint: Checkpoint) -> BatchLimits:
    """The limits of a batch. Raises ``ConfigError`` if the model's longest prompt, or its largest picture, could never
    be computed.
    """
    config = for_model(config, checkpoint.spec)
    scheduler, longest = config.scheduler, checkpoint.spec.max_model_len
    scheduler.require_step_for(longest)
    if (vision := checkpoint.spec.vision) is not None:
        require_step_for_pictures(scheduler, vision)
    return BatchLimits(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=longest,
        block_size=config.cache.block_size,
        kv_cache_groups=checkpoint.config.groups_of(checkpoint.config.caching_layers),
        min_batched_tokens=1 if scheduler.enable_chunked_prefill else longest,
        keeps_states=checkpoint.config.keeps_states,
        num_speculative_tokens=scheduler.num_speculative_tokens,
        attends_both_ways=checkpoint.config.attends_both_ways,
        vision=vision,
        encoder_step_tokens=0 if vision is None else encoder_step_tokens(scheduler, vision),
        encoder_cache_tokens=0 if vision is None else encoder_cache_tokens(config.cache, scheduler, vision),
        pooling=checkpoint.spec.pooling,
        max_lora_rank=config.lora.max_lora_rank if config.lora.enable_lora else 0,
    )


def _on_device(method: Callable[Concatenate[Worker, _P], _T]) -> Callable[Concatenate[Worker, _P], _T]:
    """Decorator: ``method`` computes on the worker's device."""

    @wraps(method)
    def computing(worker: Worker, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with worker.device.computing():
            return method(worker, *args, **kwargs)

    return computing


class Worker:
    """Call ``init_device``, ``load_model``, ``profile`` (unless the cache's size is given), ``allocate``, ``warm_up``,
    then, for each plan in order, ``launch`` on the rank that samples; on others, ``follow``, and ``commit`` its tokens.
    """

    device: Platform
    model: LanguageModel

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, rank: Rank | None = None) -> None:
        """Takes no memory yet. Without a ``rank`` it is the only one."""
        self.checkpoint = checkpoint
        self.rank = rank or Rank()
        self.limits = batch_limits(config, checkpoint)
        self._config = config = for_model(config, checkpoint.spec)
        self._library = KernelLibrary(config.device.kernel_cache_dir)
        self.grammars: GrammarCompiler | None = None
        """On the rank that samples, once the model is loaded; None if grammars cannot be used."""
        self.drafter: Drafter | None = None
        """On the rank that samples, once the model is loaded, if a model computes drafts."""
        self._tapped_layers: tuple[int, ...] = ()
        """Those whose inputs a drafter observes, on this rank or on another, once the model is loaded."""
        self._collectives: TensorCollectives | None = None
        self._links: StageLinks | None = None
        self._runner: ModelRunner | None = None
        self._adapters: LoadedAdapters | None = None
        self._caches = Caches([])

    @property
    def takes_one_step(self) -> bool:
        """Whether every step's result is taken before the next step is sent."""
        return self.rank.pp_size == 1 and not self._config.scheduler.async_scheduling

    def lacks_kernels(self) -> bool:
        """Whether native kernels are needed, and must be compiled first."""
        return is_for_cpu(self._config.device) and not self._library.is_built()

    def compile_kernels(self, on_progress: Callable[[int, int], None]) -> str:
        """Compile native kernels, or wait for another process that does; returns the outcome, for a person.

        ``on_progress`` is called with (files compiled, all files).
        """
        try:
            self._library.load(on_progress)
        except KernelsUnavailableError:
            return "without success: a warning says why"
        return f"into {self._library.path}"

    def init_device(self) -> DeviceReport:
        """Choose the device, and measure its memory. Raises ``ConfigError``."""
        config = self._config
        device = self.device = choose_platform(
            config.device, self.checkpoint, self.limits, self._library, self.rank, config.cache.kv_cache_dtype
        )
        return DeviceReport(
            device.describe(),
            device.usable,
            device.request_memory(config.cache.gpu_memory_utilization),
            device.uses_host_memory,
            device.is_asynchronous,
            device.warning,
            device.tensor_transport,
            device.invariance_advice,
        )

    def join(self, rendezvous: Rendezvous) -> None:
        """Connect to the other ranks, which all call this at the same time.

        Raises ``RankFailedError``, ``OutOfMemoryError``.
        """
        timeout = self._config.parallel.worker_start_timeout
        try:
            self._collectives, self._links = join(
                rendezvous, self.rank, self.device.torch_device, timeout, self._library
            )
        except MemoryError as error:
            raise OutOfMemoryError(str(error)) from error

    @_on_device
    def load_model(self, on_progress: Callable[[int, int], None]) -> ModelReport:
        """Read the weights; ``on_progress`` is called with (bytes done, total bytes).

        Raises ``CheckpointError``, or ``OutOfMemoryError`` if weights or rotary angles are larger than the memory.
        """
        checkpoint, device, rank = self.checkpoint, self.device, self.rank
        digest = WeightsDigest() if rank.world_size == 1 else RankDigest()
        speculation = self._config.scheduler.speculation
        max_model_len = checkpoint.spec.max_model_len
        angles = sum(rope.nbytes(max_model_len) for rope in checkpoint.config.distinct_ropes)
        require_room_for_angles(angles, max_model_len, device.usable, device.limit)
        model = make_model(
            checkpoint,
            device.attention,
            device.ops,
            device.torch_device,
            device.quantization,
            rank,
            self._collectives,
            enable_lora=self._config.lora.enable_lora,
        )
        require_room_for_weights(model.expected_weight_bytes, checkpoint.kept_as, device.usable, device.limit)
        load_weights(model, checkpoint, device.torch_device, on_progress, digest)
        layers = device.ops.describe_layers()
        self.model = model
        spec, states = model.kv_cache_spec(self.limits.block_size), model.state_cache_spec
        bytes_per_block, layout = device.attention.bytes_per_block(spec), f"{type(device.attention).__name__} {spec}"
        if states is not None:
            layout += f" {states}"
        if speculation is not None and speculation.is_computed:
            target = Target(self._config, checkpoint, model, self.limits, device)
            self._tapped_layers = tapped_layers(speculation, target)
            if rank.samples:
                self.drafter = load_drafter(speculation, target, on_progress)
                bytes_per_block += self.drafter.bytes_per_block
        device.trim()
        numerics = numerics_of(checkpoint, device, model, spec, rank)
        report = ModelReport(
            model.weight_bytes,
            model.num_weights,
            bytes_per_block,
            layout,
            numerics,
            layers=layers,
            bytes_per_state=0 if states is None else states.bytes_per_state,
            draft_weight_bytes=0 if self.drafter is None else self.drafter.weight_bytes,
            grammar_problem=self._open_grammars(),
            lora_targets=None if model.lora is None else named_targets(model, model.lora.targets, checkpoint),
            bytes_per_lora=self._bytes_per_lora,
        )
        if isinstance(digest, RankDigest):
            return replace(report, taken=digest.taken)
        return replace(report, model_digest=checkpoint.digest(digest), hashing_seconds=digest.seconds)

    def _open_grammars(self) -> str | None:
        """Why grammars cannot be used; None if they can, or another rank samples."""
        if self.checkpoint.spec.pooling is not None:
            return _NO_TOKENS
        if self.rank.samples:
            try:
                self.grammars = open_grammars(self._config.model, self.checkpoint.spec)
            except GrammarsUnavailableError as error:
                return str(error)
        return None

    @property
    def _bytes_per_lora(self) -> int:
        """As in ``ModelReport``."""
        return 0 if (lora := self.model.lora) is None else lora.most_bytes(self._config.lora.max_lora_rank)

    def expect_adapters(self, targets: LoRATargets, limits: LoRALimits) -> None:
        """Get ready to load adapters of the whole model, which has those ``targets``; needs ``allocate``."""
        assert self.model.lora is not None
        self._adapters = LoadedAdapters(self.model.lora, targets, limits)
        self._current_runner().use_adapters(self._adapters)

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        """As ``LoadedAdapters.load``, after ``expect_adapters``."""
        assert self._adapters is not None
        self._adapters.load(adapter_id, path, digest)

    def unload_adapter(self, adapter_id: int) -> None:
        """As ``LoadedAdapters.unload``, after ``expect_adapters``."""
        assert self._adapters is not None
        self._adapters.unload(adapter_id)

    def compile_grammar(self, grammar: str) -> None:
        """Compile ``grammar`` for plans to come, from any thread. The executor reports its errors."""
        if self.grammars is not None:
            with suppress(InvalidRequestError):
                self.grammars.compile(grammar)

    @_on_device
    def profile(self) -> Profile:
        """Measure the memory of the largest step."""
        profile = self.device.profile(self.model, self._new_batch, self.drafter)
        profile = profile.with_adapters(self._config.lora.most_loaded * self._bytes_per_lora)
        if not isinstance(profile, MemoryProfile):
            return profile
        limits, speculation = self.limits, self._config.scheduler.speculation
        if self.checkpoint.spec.vision is not None:
            profile = replace(profile, pixels=self._config.cache.media_memory_bytes)
        if speculation is not None:
            most = speculation.most_index_bytes(limits.max_num_seqs, limits.max_model_len)
            profile = replace(profile, indexes=most)
        return profile

    @_on_device
    def allocate(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate the caches and the batch; returns the bytes that the caches will still take as they fill.

        If ``kv_cache_memory_bytes`` is set, memory is taken now, so that no step waits for it; else, on a CPU, on
        first write, as that of a drafter always is. Raises ``OutOfMemoryError``.
        """
        now = self._config.cache.kv_cache_memory_bytes is not None
        try:
            self._caches = self.device.allocate(self.model, kv_cache_config, now)
            runner = self._runner = self.device.make_runner(self.model, self._new_batch(), self._links)
            if self.drafter is not None:
                runner.use_drafter(self.drafter, kv_cache_config.num_blocks, self.device.computing)
        except RuntimeError as error:
            flag = "--kv-cache-memory-bytes" if now else "--gpu-memory-utilization, or set --kv-cache-memory-bytes"
            raise OutOfMemoryError(
                f"the system refused {size(kv_cache_config.nbytes)} for the KV cache: {error}. "
                f"Lower {flag}{f'; {self.device.limit}' if self.device.limit else ''}."
            ) from error
        speculation = self._config.scheduler.speculation
        if speculation is not None and (speculation.reads_final_states or speculation.taps_layers):
            runner.compute_for_observer(self._tapped_layers)
        if not self.device.uses_host_memory:
            return 0
        of_drafts = 0 if self.drafter is None else kv_cache_config.num_blocks * self.drafter.bytes_per_block
        if now:
            return of_drafts
        spec, states = self.model.kv_cache_spec(self.limits.block_size), self.model.state_cache_spec
        of_blocks = kv_cache_config.num_blocks * self.device.attention.bytes_per_block(spec)
        return of_drafts + of_blocks + (0 if states is None else kv_cache_config.num_states * states.bytes_per_state)

    @_on_device
    def warm_up(self, kv_cache_config: KVCacheConfig) -> ReadyReport:
        """Generate a few tokens, prepare what steps would otherwise wait for, and test that results are stable."""
        assert self._runner is not None
        prompt, *steps, release = warm_up_steps(self.limits, self.model.vocab_size)
        start = time.perf_counter()
        is_sound = self._compute(prompt)
        seconds_per_token = (time.perf_counter() - start) / prompt.total_tokens
        for plan in steps:
            is_sound &= self._compute(plan)
        self._runner.update(release)
        pictures = self._warm_up_pictures()
        device, model, limits = self.device, self.model, self.limits
        made = device.prepare(self._runner, self._new_batch, self._caches)
        spec = model.kv_cache_spec(limits.block_size)
        num_heads = self.checkpoint.config.num_heads // self.rank.tp_size
        attention = attention_seconds(
            device.attention, spec, model.cache_of_layers, num_heads, limits, device.torch_device
        )
        is_stable = device.batch_invariant and is_bitwise_stable(
            model.one_layer_of_each_kind(), device.attention, limits, device.torch_device
        )
        is_stable = is_stable and (model.vision is None or is_encoding_stable(model.vision))
        step_seconds = device.largest_step_seconds or seconds_per_token * limits.max_num_batched_tokens
        return ReadyReport(
            made,
            step_seconds + attention + pictures.step_seconds,
            pictures.step_seconds,
            pictures.seconds_per_token * limits.max_num_batched_tokens / step_seconds,
            is_stable,
            is_sound and pictures.is_sound,
            device.memory_left(self._config.cache, kv_cache_config),
        )

    @_on_device
    def time_steps(self, count: int, num_drafts: int, proposals: int, runs: int) -> float:
        """As ``TimeSteps``, after ``warm_up``; 0 if another rank samples."""
        seconds = StepTimer(self._current_runner(), self.limits, self._compute).seconds(
            count, num_drafts, proposals, runs
        )
        return seconds if self.rank.samples else 0.0

    def _warm_up_pictures(self) -> _Pictures:
        """Compute a prompt with a picture, if any fits.

        With several stages nothing but the picture is computed: only the first stage can make one up.
        """
        vision, runner = self.model.vision, self._current_runner()
        if vision is None:
            return _Pictures()
        encoding = self.device.encoding or measure_encoding(vision)
        steps = picture_warm_up(self.limits, encoding.picture, self.model.vocab_size)
        if steps is not None and self.rank.pp_size == 1:
            step, release = steps
            self._compute(step)
            runner.update(release)
            runner.encoder_cache.update(EncoderPlan([encoding.picture.digest], []))
        runner.encoder_cache.rows_per_token = encoding.rows_per_token
        self.device.encoding = None  # frees the embeddings
        return _Pictures(encoding.step_seconds(self.limits), encoding.seconds_per_token, encoding.is_finite)

    @_on_device
    def first_unsound_part(self) -> str | None:
        """As in ``worker.unsound_part``, after a warm-up that was unsound on one of the ranks."""
        vision = self.model.vision
        if vision is not None and not measure_encoding(vision).is_finite:
            return "what encodes pictures"
        return first_unsound_part(self.model, self.device.attention, self.limits, self.device.torch_device)

    @_on_device
    def launch(self, plan: StepPlan) -> ComputedStep:
        """Start to compute a step and sample its tokens; needs ``allocate``, and ``Rank.samples``."""
        self._copy_blocks(plan)
        return self._current_runner().launch(plan, self._caches)

    @_on_device
    def follow(self, plan: StepPlan) -> None:
        """Compute this rank's part of a step that another rank samples; needs ``allocate``.

        Every planned sequence's last token must be committed.
        """
        self._copy_blocks(plan)
        self._current_runner().follow(plan, self._caches)

    def _copy_blocks(self, plan: StepPlan) -> None:
        if plan.copied_blocks:
            copy_blocks(self.device.attention, self._caches.kv, plan.copied_blocks)

    def commit(self, step_id: int, sampled: npt.NDArray[np.int64]) -> None:
        """Add the tokens (``ComputedStep.sampled``) of the oldest followed step that lacks them."""
        self._current_runner().commit(step_id, sampled)

    def close(self) -> None:
        """Free weights, cache and batch. Idempotent."""
        self._runner = self.drafter = self._adapters = None
        self._caches = Caches([])
        for connection in (self._collectives, self._links):
            if connection is not None:
                connection.close()
        self._collectives = self._links = None
        if hasattr(self, "model"):
            del self.model
            self.device.trim()

    def _current_runner(self) -> ModelRunner:
        if self._runner is None:
            raise RuntimeError("the worker has no KV cache: it was not started, or is closed")
        return self._runner

    def _compute(self, plan: StepPlan) -> bool:
        """Compute a warm-up step; whether its logits were numbers, as far as this rank knows.

        Sampled tokens do not matter, so they are not sent to other ranks.
        """
        if self.rank.samples:
            return not self.launch(plan).result().failed
        self.follow(plan)
        num_sampled = sum(plan.samples) + sum(map(len, plan.draft_token_ids.values()))
        self.commit(plan.step_id, np.zeros(num_sampled, np.int64))
        return True

    def _new_batch(self) -> InputBatch:
        limits = self.limits
        try:
            return InputBatch(limits, self.model.vocab_size, self.checkpoint.spec.eos_token_ids, self.grammars)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the system refused the memory for a batch of {limits.max_num_seqs} sequences of up to "
                f"{limits.max_model_len} tokens. Lower --max-num-seqs or --max-model-len."
            ) from error
