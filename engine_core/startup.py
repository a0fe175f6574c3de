"""Starts an engine from an ``EngineConfig``, in stages: configuration, start ranks, compile kernels, device, join
ranks, load weights, profile, allocate KV cache, warm up, serving. Unneeded stages are skipped.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine_core.config import EngineConfig, ModelSpec, ParallelConfig
from engine_core.distributed.rendezvous import Rendezvous
from engine_core.engine import EngineCore
from engine_core.errors import CheckpointError, ConfigError
from engine_core.executor.collective import CollectiveExecutor, StartedModel
from engine_core.executor.ranks.identity import require_equal
from engine_core.executor.uniproc import UniProcWorker
from engine_core.executor.workers import Workers
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.lora.support import LoRASupport
from engine_core.lora.targets import LoRALimits, joined_targets
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.digest import digest_of
from engine_core.model_loader.gguf.projector import projectors_beside
from engine_core.model_loader.loader import WeightsOnDisk, vision_outline
from engine_core.model_loader.location import served_name
from engine_core.model_loader.picture_facts import picture_facts
from engine_core.model_loader.safetensors_reader import conversion_advice
from engine_core.platforms.kv_cache_size import Profile, describe_states, size, size_as_given, size_by_profile
from engine_core.progress import StartupProgress
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes
from engine_core.structured_output.compiler import GrammarCompiler, GrammarsUnavailableError, grammar_numerics
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.step_times import measure_step_times
from engine_core.worker.worker import DeviceReport, ModelReport, ReadyReport, batch_limits

_AS_IT_FILLS = "; only addresses are reserved, and memory is taken as the cache fills"
_LONG_STEP = 2.0
"""Seconds after which a step is one for which readers of other streams notice that they wait."""
_STABLE = "results do not depend on what else is in the batch"
_UNSTABLE = (
    "WARNING: results depend on what else is in the batch here%s, so a request that moves to another engine may "
    "continue with other tokens than it would have had, which are as valid"
)
_COMPILING = "native kernels for this CPU: takes a minute or two, once; if interrupted, the next start goes on with it"


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that can take requests, and its executor."""

    core: EngineCore
    executor: CollectiveExecutor

    def close(self) -> None:
        """Free weights and cache; the engine is then unusable. Idempotent."""
        self.executor.close()


def start_engine(config: EngineConfig, progress: StartupProgress, name: str = "") -> StartedEngine:
    """Start an engine, reporting each stage with its seconds and bytes to ``progress``; ``name`` is in ranks' titles.

    If it raises ``EngineError`` (``ConfigError``, ``CheckpointError``, ``OutOfMemoryError``), everything is closed.
    """
    executor = start_executor(choose_workers(config, name), progress)
    try:
        with progress.stage("serving"):
            return StartedEngine(EngineCore(config, executor), executor)
    except BaseException:
        executor.close()
        raise


def choose_workers(config: EngineConfig, name: str = "") -> Workers:
    """The workers that ``config`` selects. Imports only what the selected implementation needs."""
    parallel = config.parallel
    _check_parallel(parallel)
    if parallel.backend == "uni":
        if parallel.data_parallel_size > 1:
            from engine_core.executor.ranks.local import require_room

            require_room(config)
        return UniProcWorker(config)
    from engine_core.executor.ranks.workers import RankWorkers

    if parallel.backend == "ray":
        from engine_core.executor.ray.launcher import RayLauncher

        return RankWorkers(RayLauncher(config, name))
    from engine_core.executor.ranks.local import LocalLauncher

    return RankWorkers(LocalLauncher(config, name))


def _check_parallel(parallel: ParallelConfig) -> None:
    """Raise ``ConfigError`` for options that contradict each other."""
    if parallel.ray_address is not None and parallel.backend != "ray":
        accepted = "no value without --distributed-executor-backend ray"
        raise ConfigError("ray_address", parallel.ray_address, accepted)
    if parallel.data_parallel_rank >= parallel.data_parallel_size:
        accepted = f"less than data_parallel_size={parallel.data_parallel_size}"
        raise ConfigError("data_parallel_rank", parallel.data_parallel_rank, accepted)
    if parallel.backend == "uni" and parallel.world_size > 1:
        ranks = f"tensor_parallel_size × pipeline_parallel_size is {parallel.world_size}"
        raise ConfigError("distributed_executor_backend", "uni", f"mp or ray for more than one rank; {ranks}")


def start_executor(workers: Workers, progress: StartupProgress) -> CollectiveExecutor:
    """Load, profile, allocate and warm up; if it raises, ``workers`` are closed."""
    try:
        return CollectiveExecutor(workers, Startup(workers, progress).run())
    except BaseException:
        workers.close()
        raise


class Startup:
    """The stages of start-up: ``collective_rpc`` calls to all workers."""

    def __init__(self, workers: Workers, progress: StartupProgress) -> None:
        self._workers = workers
        self._config = workers.config
        self._progress = progress

    def run(self) -> StartedModel:
        checkpoint, limits = self._configuration()
        self._workers.start(checkpoint, self._progress)
        self._compile_kernels()
        device = self._device()
        self._join_ranks(device)
        loaded = self._load_weights(checkpoint)
        concurrent_steps = self._concurrent_steps(device)
        limits = replace(limits, concurrent_steps=concurrent_steps)
        cache, step_bytes = self._size_cache(loaded.reports, limits, device)
        unwritten_bytes = self._allocate(cache, loaded.reports)
        warm = self._warm_up(cache, checkpoint.spec, device.invariance_advice)
        vision, lora = vision_outline(checkpoint), self._expect_adapters(loaded.reports)
        self._workers.start_steps(concurrent_steps, warm.largest_step_seconds)
        is_here = not self._workers.places
        return StartedModel(
            replace(checkpoint.spec, num_parameters=loaded.num_parameters, picture_token_cost=warm.picture_token_cost),
            cache,
            unwritten_bytes if is_here else 0,
            step_bytes if is_here else 0,
            device.request_memory,
            loaded.digest,
            # Unique if results vary, so that no other executor counts as equal.
            loaded.numerics if warm.is_stable else f"unstable {uuid.uuid4().hex}",
            warm.largest_step_seconds,
            concurrent_steps,
            loaded.grammars,
            None if vision is None else vision.check,
            picture_facts(checkpoint),
            warm.step_times,
            lora,
        )

    def _configuration(self) -> tuple[Checkpoint, BatchLimits]:
        with self._progress.stage("configuration") as stage:
            checkpoint = open_checkpoint(self._config.model, self._config.load, self._config.parallel)
            spec = checkpoint.spec
            stage.detail = (
                f"{served_of_multimodal(checkpoint)}{spec.architecture} {checkpoint.choice.reason}, "
                f"{checkpoint.kept_as}, max_model_len {spec.max_model_len}"
            )
            if spec.default_sampling:
                chosen = ", ".join(f"{name} {value:g}" for name, value in sorted(spec.default_sampling.items()))
                stage.detail += f"; default sampling: {chosen}"
            if advice := conversion_advice(checkpoint.path, checkpoint.load_format):
                stage.detail += f"; {advice}"
            if not self._config.model.language_model_only:
                stage.warning = _text_alone(checkpoint)
            return checkpoint, batch_limits(self._config, checkpoint)

    def _compile_kernels(self) -> None:
        if any(self._workers.collective_rpc("lacks_kernels")):
            with self._progress.stage("compile kernels", _COMPILING, "files") as stage:
                stage.detail = self._workers.collective_rpc(
                    "compile_kernels", on_progress=lambda done, total: self._progress.advance(stage, done, total)
                )[0]

    def _device(self) -> DeviceReport:
        with self._progress.stage("device") as stage:
            devices: list[DeviceReport] = self._workers.collective_rpc("init_device")
            require_equal([{"tensor transport": each.tensor_transport} for each in devices], self._workers.names)
            stage.bytes = sum(each.usable_bytes for each in devices)
            stage.detail = self._by_rank([each.description for each in devices])
            stage.warning = self._by_rank([each.warning for each in devices])
            return devices[0]

    def _join_ranks(self, device: DeviceReport) -> None:
        if len(self._workers.names) > 1:
            with self._progress.stage("join ranks") as stage, self._workers.rendezvous(device) as rendezvous:
                self._workers.collective_rpc("join", rendezvous)
                stage.detail = self._wires(rendezvous)

    def _load_weights(self, checkpoint: Checkpoint) -> _Loaded:
        names, progress = self._workers.names, self._progress
        with progress.stage("load weights") as stage, _hashing(checkpoint if len(names) > 1 else None) as on_disk:
            models: list[ModelReport] = self._workers.collective_rpc(
                "load_model", on_progress=lambda done, total: progress.advance(stage, done, total)
            )
            model = models[0]
            require_equal([{"numerics": each.numerics} for each in models], names)
            stage.bytes = sum(each.weight_bytes + each.draft_weight_bytes for each in models)
            digest, parameters = model.model_digest, model.num_parameters
            if on_disk is not None:
                weights, digest_on_disk = on_disk.result()
                digest, parameters = self._digest_of_parts(weights, digest_on_disk, models), weights.num_parameters
            assert digest is not None
            grammars = self._open_grammars(models, checkpoint.spec)
            of_grammars = [] if isinstance(grammars, str) else [grammar_numerics()]
            numerics = digest_of(digest, model.numerics, *of_grammars)
            stage.detail = "; ".join(filter(None, (f"numerics {numerics}", model.layers)))
            if model.hashing_seconds:
                stage.detail += f"; hashed in {model.hashing_seconds:.2f} s"
            if len(models) > 1:
                stage.detail += "; " + self._by_rank([size(each.weight_bytes) for each in models])
            stage.detail += self._of_drafts(models)
            return _Loaded(models, parameters, digest, numerics, grammars)

    def _of_drafts(self, models: Sequence[ModelReport]) -> str:
        """What computes drafts, the end of a line; empty if nothing does."""
        config = self._config.scheduler.speculation
        if config is None or not config.is_computed:
            return ""
        by = config.method if config.model is None else served_name(config.model)
        return f"; drafts by {by}, {size(sum(each.draft_weight_bytes for each in models))}"

    def _digest_of_parts(self, weights: WeightsOnDisk, digest: str, models: Sequence[ModelReport]) -> str:
        """The model's ``digest``, once verified that every rank has taken its part of that very model."""
        for name, model in zip(self._workers.names, models, strict=True):
            if (other := weights.first_other(model.taken)) is not None:
                raise CheckpointError(
                    f"{name} has loaded another {other} than this host has: give every host of the engine the same "
                    "checkpoint"
                )
        return digest

    def _open_grammars(self, models: Sequence[ModelReport], spec: ModelSpec) -> GrammarCompiler | str:
        """The compiler for this process, or why grammars cannot be used."""
        for model in models:
            if model.grammar_problem is not None:
                return model.grammar_problem
        try:
            return self._workers.open_grammars(spec)
        except GrammarsUnavailableError as error:
            return str(error)

    def _size_cache(
        self, models: Sequence[ModelReport], limits: BatchLimits, device: DeviceReport
    ) -> tuple[KVCacheConfig, int]:
        """The largest cache that fits on every worker, and the host memory in bytes that the largest step takes."""
        cache, step_bytes = self._config.cache, 0
        if cache.kv_cache_memory_bytes is not None:
            sizes = [size_as_given(cache, limits, model.bytes_per_block, model.bytes_per_state) for model in models]
        else:
            with self._progress.stage("profile") as stage:
                profiles: list[Profile] = self._workers.collective_rpc("profile")
                stage.bytes = max(profile.step_peak for profile in profiles)
                if device.uses_host_memory:
                    step_bytes = sum(profile.step_peak for profile in profiles)
                sizes = [
                    size_by_profile(profile, cache, limits, model.bytes_per_block, model.bytes_per_state)
                    for profile, model in zip(profiles, models, strict=True)
                ]
                tightest = min(range(len(sizes)), key=lambda at: (sizes[at].num_blocks, sizes[at].num_states))
                stage.detail = profiles[tightest].describe(cache.gpu_memory_utilization)
                if len(sizes) > 1:
                    stage.detail = f"{self._workers.names[tightest]} has the least room: {stage.detail}"
        fewest = replace(
            sizes[0],
            num_blocks=min(each.num_blocks for each in sizes),
            num_states=min(each.num_states for each in sizes),
            bytes_per_state=max(each.bytes_per_state for each in sizes),
            layout=models[0].kv_cache_layout,
        )
        return fewest, step_bytes

    def _allocate(self, cache: KVCacheConfig, models: Sequence[ModelReport]) -> int:
        """Allocate the cache; returns the bytes that it will still take as it fills."""
        with self._progress.stage("allocate KV cache") as stage:
            stage.bytes = cache.num_blocks * sum(each.bytes_per_block for each in models)
            stage.bytes += cache.num_states * sum(each.bytes_per_state for each in models)
            unwritten: list[int] = self._workers.collective_rpc("allocate", cache)
            described = ", and ".join(filter(None, (cache.describe(), describe_states(cache))))
            stage.detail = described + (_AS_IT_FILLS if any(unwritten) else "")
            return sum(unwritten)

    def _warm_up(self, cache: KVCacheConfig, spec: ModelSpec, advice: str) -> _Warm:
        """``advice``: the device's, where a self-test fails. Raises ``CheckpointError`` if a part outputs NaN."""
        with self._progress.stage("warm up") as stage:
            ready: list[ReadyReport] = self._workers.collective_rpc("warm_up", cache)
            if not all(each.is_sound for each in ready):
                self._require_numbers(spec)
            seconds, ranks = [each.largest_step_seconds for each in ready], self._config.parallel.tensor_parallel_size
            # Stages compute one after the other, the ranks of a stage at the same time.
            largest = sum(max(seconds[at : at + ranks]) for at in range(0, len(seconds), ranks))
            is_stable = all(each.is_bitwise_stable for each in ready)
            times = self._step_times()
            details = (
                self._by_rank([each.made for each in ready]),
                self._of_largest_step(largest, max(each.encoding_seconds for each in ready), spec),
                _STABLE if is_stable else _UNSTABLE % (advice and f" ({advice})"),
                self._by_rank([each.memory_left for each in ready]),
                "" if times is None else times.describe(),
            )
            stage.detail = "; ".join(filter(None, details))
            cost = max(each.picture_token_cost for each in ready)
            return _Warm(is_stable, largest, cost, ASSUMED_STEP_TIMES if times is None else times)

    def _expect_adapters(self, models: Sequence[ModelReport]) -> LoRASupport | None:
        """Get workers ready to load adapters; None: there are none."""
        options = self._config.lora
        if not options.enable_lora:
            return None
        targets = joined_targets([each.lora_targets for each in models if each.lora_targets is not None])
        # Ranks of a stage have some of each layer's outputs; what all have together is more than any adapter takes.
        most = options.most_loaded * sum(each.bytes_per_lora for each in models)
        limits = LoRALimits(options.max_lora_rank, most)
        with self._progress.stage("adapters") as stage:
            self._workers.collective_rpc("expect_adapters", targets, limits)
            stage.bytes = most
            stage.detail = (
                f"room for {options.most_loaded} of rank {options.max_lora_rank}, {options.most_active} used at a time"
            )
        return LoRASupport(targets, limits, options.most_active, options.most_loaded, most)

    def _step_times(self) -> StepTimes | None:
        """None if no drafter proposes tokens."""
        scheduler = self._config.scheduler
        if (speculation := scheduler.speculation) is None:
            return None

        def time_steps(*steps: int) -> float:
            seconds: list[float] = self._workers.collective_rpc("time_steps", *steps)
            return max(seconds)  # only the rank that samples says how long it took

        most = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        return measure_step_times(time_steps, most, proposes=speculation.is_computed)

    def _of_largest_step(self, seconds: float, encoding: float, spec: ModelSpec) -> str:
        """How long it takes, for a person; where streams would stall, also which option shortens it.

        ``encoding``: how much of the ``seconds`` pictures take.
        """
        tokens = self._config.scheduler.max_num_batched_tokens
        text = f"the largest step, of {tokens} tokens of long prompts, takes about {float(f'{seconds:.1g}'):g} s"
        if is_mostly_pictures := encoding > seconds / 2:
            text += f", {float(f'{encoding:.1g}'):g} s of it to encode pictures"
        if seconds < _LONG_STEP:
            return text
        if is_mostly_pictures and spec.vision is not None and spec.vision.shrinks:
            return f"{text}; a lower --max-picture-tokens, now {spec.vision.max_tokens}, bounds what requests wait"
        return f"{text}, one without prompts far less; a lower --max-num-batched-tokens bounds what streams wait"

    def _require_numbers(self, spec: ModelSpec) -> None:
        """Raise ``CheckpointError`` for the first part that outputs NaN, after an unsound warm-up."""
        for part in self._workers.collective_rpc("first_unsound_part"):
            if part is not None:
                raise CheckpointError(
                    f"the model computes a NaN for its very first tokens, which begins in {part}: either weights are "
                    f"damaged, or numbers become too large for {spec.dtype} there (--dtype float32 holds larger ones)"
                )

    def _concurrent_steps(self, device: DeviceReport) -> int:
        if len(self._workers.names) > 1:
            return self._config.parallel.pipeline_parallel_size
        asked = self._config.scheduler.async_scheduling
        return 2 if (device.is_asynchronous if asked is None else asked) else 1

    def _wires(self, rendezvous: Rendezvous) -> str:
        """How ranks exchange tensors, for a person."""
        parallel, transport = self._config.parallel, rendezvous.tensor_transport
        between = {"tensor parallel": (parallel.tensor_parallel_size, transport)}
        between["stages"] = parallel.pipeline_parallel_size, "nccl" if transport == "nccl" else "gloo"
        used = [f"{what} over {how}" for what, (size, how) in between.items() if size > 1]
        return f"{parallel.world_size} ranks: {', '.join(used)}"

    def _by_rank(self, texts: Sequence[str]) -> str:
        """The ranks' texts, only once if all are equal."""
        if len(texts) == 1 or not any(texts):
            return texts[0]
        if len(set(texts)) == 1:
            return f"each of {len(texts)} ranks: {texts[0]}"
        return " | ".join(f"{name}: {text}" for name, text in zip(self._workers.names, texts, strict=True) if text)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model that all workers have loaded."""

    reports: Sequence[ModelReport]
    """By rank."""
    num_parameters: int
    """Of all ranks together: what several ranks have in common counts once."""
    digest: str
    numerics: str
    grammars: GrammarCompiler | str
    """As in ``StartedModel``."""


@dataclass(frozen=True, slots=True)
class _Warm:
    """What the warm-up has found out; fields as in ``StartedModel`` and ``ModelSpec``."""

    is_stable: bool
    """Whether every self-test passed."""
    largest_step_seconds: float
    picture_token_cost: float
    step_times: StepTimes


def served_of_multimodal(checkpoint: Checkpoint) -> str:
    """What is served of a multimodal model, the beginning of a line about its text model; empty for another."""
    if checkpoint.text_of is None:
        return ""
    if checkpoint.vision is None:
        return f"the text of {checkpoint.text_of} alone: "
    return f"{checkpoint.text_of}, with pictures: "


def _text_alone(checkpoint: Checkpoint) -> str:
    """What is not served of a multimodal model, for people; empty for another."""
    wanted = "(--language-model-only says that this is wanted)"
    if checkpoint.vision is not None:
        return ""
    if checkpoint.text_of is not None:
        return f"only the text of {checkpoint.text_of} is served; pictures and sound are refused {wanted}"
    found = projectors_beside(checkpoint.path) if checkpoint.is_gguf else []
    if not found:
        return ""
    return f"only text is served: {found[0]}, which lies beside the model, is a projector and is not read {wanted}"


@contextmanager
def _hashing(checkpoint: Checkpoint | None) -> Iterator[Future[tuple[WeightsOnDisk, str]] | None]:
    """Hash a checkpoint in a thread that stops when the block ends; yields its weights on disk and the model digest."""
    if checkpoint is None:
        yield None
        return
    stop, found = threading.Event(), Future[tuple[WeightsOnDisk, str]]()

    def compute() -> None:
        try:
            weights = WeightsOnDisk(checkpoint)
            found.set_result((weights, weights.digest(stop)))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=compute, name="hash weights", daemon=True).start()
    try:
        yield found
    finally:
        stop.set()
