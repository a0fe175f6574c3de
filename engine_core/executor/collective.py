"""The base of all executors, on top of ``collective_rpc``: start-up stages, sizing of the KV cache, failure handling.

Executors differ only in where their workers run.
"""

from __future__ import annotations

import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import ranks_on_one_host
from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.errors import CheckpointError, ExecutorError
from engine_core.executor.base import Executor
from engine_core.executor.identity import require_equal
from engine_core.executor.worker import DeviceReport, ModelReport, ReadyReport, batch_limits
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.digest import digest_of
from engine_core.model_loader.loader import WeightsOnDisk
from engine_core.platforms.kv_cache_size import Profile, size, size_as_given, size_by_profile
from engine_core.progress import StartupProgress
from engine_core.structured_output.compiler import GrammarCompiler, GrammarsUnavailableError, grammar_numerics

_T = TypeVar("_T")
OnProgress = Callable[[int, int], None]
"""Takes what is done, and what there is in all."""
_UNSTABLE = (
    "WARNING: results depend on what else is in the batch here (on a GPU, --deterministic changes that), so a request "
    "that moves to another engine may continue with other tokens than it would have had, which are as valid"
)


class CollectiveExecutor(Executor):
    """Starts its workers and sizes their caches; a subclass decides where they run and how plans reach them."""

    def __init__(self, config: EngineConfig) -> None:
        """Reads no files and allocates no memory; ``start`` does."""
        self._config = config
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._failure: BaseException | None = None
        self._telling = threading.Lock()
        self._grammars: GrammarCompiler | None = None
        self._names = [f"rank {rank}" for rank in ranks_on_one_host(config.parallel)]

    @abstractmethod
    def start_workers(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        """Create the workers, which allocate nothing yet."""

    @abstractmethod
    def collective_rpc(self, method: str, *arguments: Any, on_progress: OnProgress | None = None) -> list[Any]:
        """Call ``method`` of every ``Worker``; returns the results by rank, or raises the first worker's exception.

        ``on_progress``, the method's last argument, gets the progress of all workers together.
        """

    @abstractmethod
    def open_grammars(self) -> GrammarCompiler:
        """The compiler of this process, once models are loaded. Raises ``GrammarsUnavailableError``."""

    @abstractmethod
    def start_steps(self) -> None:
        """Prepare for plans, for ``max_concurrent_steps`` in flight."""

    def start(self, progress: StartupProgress) -> None:
        try:
            self._start(progress)
        except BaseException:
            self.close()
            raise

    def _start(self, progress: StartupProgress) -> None:
        with progress.stage("configuration") as stage:
            checkpoint = open_checkpoint(self._config.model, self._config.load, self._config.parallel)
            self.model = checkpoint.spec
            stage.detail = (
                f"{self.model.architecture} {checkpoint.choice.reason}, {checkpoint.kept_as}, max_model_len "
                f"{self.model.max_model_len}"
            )
            self._limits = batch_limits(self._config, checkpoint)
        self.start_workers(checkpoint, progress)
        if any(self.collective_rpc("lacks_kernels")):
            with progress.stage("compile kernels") as stage:
                stage.detail = self.collective_rpc("compile_kernels")[0]
        with progress.stage("device") as stage:
            devices: list[DeviceReport] = self.collective_rpc("init_device")
            device = devices[0]
            require_equal([{"tensor transport": each.tensor_transport} for each in devices], self._names)
            self.request_memory = device.request_memory
            stage.bytes = sum(each.usable_bytes for each in devices)
            stage.detail = self._by_rank([each.description for each in devices])
            stage.warning = self._by_rank([each.warning for each in devices])
        if len(self._names) > 1:
            with progress.stage("join ranks") as stage, self.rendezvous(device) as rendezvous:
                self.collective_rpc("join", rendezvous)
                stage.detail = self._wires(rendezvous)
        with progress.stage("load weights") as stage, _hashing(checkpoint if len(self._names) > 1 else None) as on_disk:
            models: list[ModelReport] = self.collective_rpc(
                "load_model", on_progress=lambda done, total: progress.advance(stage, done, total)
            )
            model = models[0]
            require_equal([{"numerics": each.numerics} for each in models], self._names)
            stage.bytes = sum(each.weight_bytes for each in models)
            if on_disk is None:
                assert model.model_digest is not None
                self.model_digest = model.model_digest
            else:
                self.model_digest = self._digest_of_parts(*on_disk.result(), models)
            self.grammar_support = self._find_grammars(models)
            of_grammars = [] if self.grammar_support else [grammar_numerics()]
            self.numerics = digest_of(self.model_digest, model.numerics, *of_grammars)
            stage.detail = "; ".join(filter(None, (f"numerics {self.numerics}", model.layers)))
            if model.hashing_seconds:
                stage.detail += f"; hashed in {model.hashing_seconds:.2f} s"
            if len(models) > 1:
                stage.detail += "; " + self._by_rank([size(each.weight_bytes) for each in models])
        self.kv_cache_config = self._size_cache(models, device.uses_host_memory, progress)
        with progress.stage("allocate KV cache") as stage:
            self.unwritten_cache_bytes = sum(self.collective_rpc("allocate", self.kv_cache_config))
            stage.bytes = self.kv_cache_config.num_blocks * sum(each.bytes_per_block for each in models)
            stage.detail = self.kv_cache_config.describe()
        with progress.stage("warm up") as stage:
            stage.detail = self._warm_up()
        asked = self._config.scheduler.async_scheduling
        overlapped = device.is_asynchronous if asked is None else asked
        alone = len(self._names) == 1
        self.max_concurrent_steps = (2 if overlapped else 1) if alone else self._config.parallel.pipeline_parallel_size
        self.start_steps()

    def _find_grammars(self, models: Sequence[ModelReport]) -> str | None:
        """Why grammars cannot be used; None if they can, by ``_grammars``."""
        for model in models:
            if model.grammar_problem is not None:
                return model.grammar_problem
        try:
            self._grammars = self.open_grammars()
        except GrammarsUnavailableError as error:
            return str(error)
        return None

    def is_special_token(self, token_id: int) -> bool:
        assert self._grammars is not None
        return self._grammars.is_special_token(token_id)

    def compile_grammar(self, grammar: str) -> None:
        if self._grammars is None:
            super().compile_grammar(grammar)
        else:
            self._grammars.compile(grammar)

    def _digest_of_parts(self, weights: WeightsOnDisk, digest: str, models: Sequence[ModelReport]) -> str:
        """The ``digest`` of the model, once it is proved that each rank has taken its part of that very model."""
        for name, model in zip(self._names, models, strict=True):
            if (other := weights.first_other(model.taken)) is not None:
                raise CheckpointError(
                    f"{name} has loaded another {other} than this host has: give every host of the engine the same "
                    "checkpoint"
                )
        return digest

    def _size_cache(self, models: Sequence[ModelReport], on_host: bool, progress: StartupProgress) -> KVCacheConfig:
        """The largest cache that fits on every worker."""
        cache = self._config.cache
        limits = self._limits
        self.step_bytes = 0
        if cache.kv_cache_memory_bytes is not None:
            sizes = [size_as_given(cache.kv_cache_memory_bytes, limits, model.bytes_per_block) for model in models]
        else:
            with progress.stage("profile") as stage:
                profiles: list[Profile] = self.collective_rpc("profile")
                stage.bytes = max(profile.step_peak for profile in profiles)
                if on_host:
                    self.step_bytes = sum(profile.step_peak for profile in profiles)
                sizes = [
                    size_by_profile(profile, cache, limits, model.bytes_per_block)
                    for profile, model in zip(profiles, models, strict=True)
                ]
                tightest = min(range(len(sizes)), key=lambda number: sizes[number].num_blocks)
                stage.detail = profiles[tightest].describe(cache.gpu_memory_utilization)
                if len(sizes) > 1:
                    stage.detail = f"{self._names[tightest]} has the least room: {stage.detail}"
        fewest = min(each.num_blocks for each in sizes)
        return replace(sizes[0], num_blocks=fewest, layout=models[0].kv_cache_layout)

    def _warm_up(self) -> str:
        """Warm up; returns a human-readable summary.

        Unless every self-test passed, ``numerics`` becomes unique, so that no other executor counts as equal.
        Raises ``CheckpointError`` where a part of the model puts out a NaN.
        """
        ready: list[ReadyReport] = self.collective_rpc("warm_up", self.kv_cache_config)
        if not all(each.is_sound for each in ready):
            self._require_numbers()
        seconds, stage = [each.largest_step_seconds for each in ready], self._config.parallel.tensor_parallel_size
        # One stage after the other; the ranks of a stage at the same time.
        self.largest_step_seconds = sum(max(seconds[at : at + stage]) for at in range(0, len(seconds), stage))
        longest = f"the largest step takes about {float(f'{self.largest_step_seconds:.1g}'):g} s"
        found = "results do not depend on what else is in the batch"
        if not all(each.is_bitwise_stable for each in ready):
            self.numerics = f"unstable {uuid.uuid4().hex}"
            found = _UNSTABLE
        made, left = self._by_rank([each.made for each in ready]), self._by_rank([each.memory_left for each in ready])
        return "; ".join(part for part in (made, longest, found, left) if part)

    def _require_numbers(self) -> None:
        """After a warm-up whose logits were no numbers."""
        for part in self.collective_rpc("first_unsound_part"):
            if part is not None:
                raise CheckpointError(
                    f"the model computes a NaN for its very first tokens, which begins in {part}: either weights are "
                    f"damaged, or numbers become too large for {self.model.dtype} there (--dtype float32 holds larger "
                    "ones)"
                )

    def _wires(self, rendezvous: Rendezvous) -> str:
        """How ranks exchange tensors, for a person."""
        parallel, transport = self._config.parallel, rendezvous.tensor_transport
        between = {"tensor parallel": (parallel.tensor_parallel_size, transport)}
        between["stages"] = parallel.pipeline_parallel_size, "nccl" if transport == "nccl" else "gloo"
        used = [f"{what} over {how}" for what, (size, how) in between.items() if size > 1]
        return f"{parallel.world_size} ranks: {', '.join(used)}"

    def _by_rank(self, texts: Sequence[str]) -> str:
        """What workers say, once if all say the same."""
        if len(texts) == 1 or not any(texts):
            return texts[0]
        if len(set(texts)) == 1:
            return f"each of {len(texts)} ranks: {texts[0]}"
        return " | ".join(f"{name}: {text}" for name, text in zip(self._names, texts, strict=True) if text)

    def rendezvous(self, device: DeviceReport) -> AbstractContextManager[Rendezvous]:
        """Where workers, of which there are several, meet while it is entered."""
        return open_rendezvous("127.0.0.1", device.tensor_transport, self._config.parallel.pipeline_parallel_size)

    def guard(self, step_id: int, compute: Callable[[], _T]) -> _T:
        """Run ``compute``, a part of a step; the first failure ends the executor."""
        if self._failure is not None:
            raise ExecutorError("the executor does not run: it has failed")
        try:
            return compute()
        except Exception as cause:
            error = ExecutorError(f"step {step_id} failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self.fail(error)
            raise error from cause
        except BaseException as interrupt:  # an interrupt of the caller, but it leaves the step incomplete
            self.fail(interrupt)
            raise

    def fail(self, error: BaseException) -> None:
        """Stop computing, and call the ``on_failure`` callbacks once. Callable from any thread, even while idle."""
        with self._telling:
            if self._failure is not None:
                return
            self._failure = error
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(error)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        with self._telling:
            self._callbacks.append(callback)
            failure = self._failure
        if failure is not None:
            callback(failure)


@contextmanager
def _hashing(checkpoint: Checkpoint | None) -> Iterator[Future[tuple[WeightsOnDisk, str]] | None]:
    """Its weights and the model digest, which a thread computes meanwhile; it stops when the block ends."""
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
