"""The engine process: bind, load stage by stage, serve, drain."""

from __future__ import annotations

import asyncio
import json
import math
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import structlog
from ringline.engine.v1 import engine_pb2

from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, EngineError
from engine_core.executor.base import Executor
from engine_core.lora.adapter import open_adapter
from engine_core.model_loader.digest import digest_of
from engine_core.progress import StartupProgress
from engine_core.startup import StartedEngine, start_engine
from services.common.config.errors import ExitCode, FatalError, unusable_option
from services.common.config.settings import EngineServiceSettings
from services.common.process.drain import wait_until_idle
from services.common.process.memory import freeze_loaded_objects, resident_memory
from services.common.process.run import DaemonThreadPool, begin_process, new_incarnation, run_service
from services.common.process.watchdog import Watchdog, thread_stacks
from services.common.rpc.server import Server
from services.common.security.credentials import listening_credentials, service_authorizers
from services.common.telemetry.logs import report_fatal
from services.common.telemetry.metrics_endpoint import start_metrics
from services.common.telemetry.tracing import start_tracing
from services.engine.adapters.modules import lora_modules
from services.engine.async_engine import AsyncEngine
from services.engine.engine_messages import model_message, rank_messages
from services.engine.load_log import LoadLog
from services.engine.pooling_messages import facts_json
from services.engine.service import METHOD_ROLES, EngineService
from services.engine.start_limit import StageClock, start_limit
from services.engine.startup_log import StageLog
from services.engine.step_loop import StepLoop
from services.engine.tokenizer import checked_tokenizer, read_tokenizer, warn_without_template
from services.engine.tracing import EngineTraces
from services.ring.identity import ADAPTERS, ENGINE_CAPABILITIES, GRAMMAR_CAPABILITIES, MEDIA, POOLING, PeerId
from services.ring.liveness import BEAT_INTERVAL
from text_core.grammar.markers import Markers
from text_core.tokenizer_files import NO_TOKENIZER, fingerprint

log = structlog.get_logger(__name__)

DESCRIPTION = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
_STOP_TIMEOUT = 10.0
"""Seconds that the current step has to finish when the process ends."""
_FAREWELL = 0.1
"""Seconds that the streams have to end after a hang was detected."""
_LEDGERS_PER_REQUEST = 4
"""Bound on ledger entries per waiting or running request: the ledger also holds finished ones until Done."""


def run(settings: EngineServiceSettings, config: EngineConfig) -> int:
    """Run the process; returns its exit code."""
    begin_process(settings, config)

    async def main() -> int:
        try:
            return await _EngineProcess(settings, config).run()
        except ConfigError as error:
            raise FatalError(unusable_option(error.option, error.value, error.accepted), ExitCode.USAGE) from error

    return run_service(main, {EngineError: ExitCode.STARTUP})


class _EngineProcess:
    def __init__(self, settings: EngineServiceSettings, config: EngineConfig) -> None:
        scheduler = config.scheduler
        self._settings = settings
        self._config = config
        self._tracing = start_tracing(settings)
        self._engine = AsyncEngine(
            orphan_grace=settings.orphan_grace,
            max_ledgers=_LEDGERS_PER_REQUEST * (scheduler.max_num_queued_reqs + scheduler.max_num_seqs),
            traces=EngineTraces(self._tracing) if self._tracing is not None else None,
        )
        self._server = Server(
            settings.server,
            [DESCRIPTION.full_name],
            credentials=listening_credentials(settings, internal=True),
            authorizers=service_authorizers(settings, DESCRIPTION, METHOD_ROLES),
        )
        self._service = EngineService(
            self._engine,
            PeerId(settings.name, new_incarnation()),
            stall_timeout=settings.server.stall_timeout,
            max_message_bytes=settings.server.max_message_bytes,
            drain=lambda grace: self._server.drain.begin(grace=grace),
            zone=settings.place.zone,
        )
        self._server.add_service(DESCRIPTION, self._service)
        self._started: StartedEngine | None = None
        self._watchdog: Watchdog | None = None
        """Watches the step loop."""

    async def run(self) -> int:
        self._engine.metrics.open_calls = lambda: self._server.open_calls
        metrics = start_metrics(self._settings, self._engine.metrics.registry, self._server.health.pages)
        try:
            return await self._server.run(self._work, self._drain)
        finally:
            if self._tracing is not None:
                self._tracing.close()
            if metrics is not None:
                metrics.close()
            self._close()

    async def _work(self) -> None:
        start = time.monotonic()
        # Read the tokenizer first: its files stay in memory, so memory profiling must count them.
        files = await asyncio.to_thread(read_tokenizer, self._config.model)
        tokenizer = await asyncio.to_thread(checked_tokenizer, files)
        added_tokens = tokenizer.added_tokens()
        del tokenizer  # it is large, and texts are not tokenized here
        await self._start_engine(files)
        assert self._started is not None
        executor = self._started.executor
        tokenizer_digest = fingerprint(files)
        facts = ""
        pooling = executor.model.pooling
        if executor.picture_facts is not None and files != NO_TOKENIZER:
            facts = json.dumps(executor.picture_facts, sort_keys=True)
        can_constrain = executor.grammar_support is None and pooling is None
        if not can_constrain and pooling is None:
            log.info("constraints are refused", reason=executor.grammar_support)
        model = model_message(
            executor.model,
            executor.kv_cache_config,
            self._config.scheduler,
            tokenizer_digest=tokenizer_digest,
            model_digest=digest_of(
                executor.model_digest, tokenizer_digest, *filter(None, [facts, facts_json(pooling)])
            ),
            numerics=executor.numerics,
            capabilities=_capabilities(executor),
            media_memory_bytes=0 if executor.model.vision is None else self._config.cache.media_memory_bytes,
        )
        model.picture_facts = facts
        answers = self._settings.answers
        model.tool_call_format = "" if answers.tool_call_parser == "auto" else answers.tool_call_parser
        model.reasoning_format = "" if answers.reasoning_parser == "auto" else answers.reasoning_parser
        loop = asyncio.get_running_loop()
        self._engine.model, self._engine.model_digest = executor.model, model.model_digest
        self._engine.capabilities = frozenset(model.capabilities)
        if can_constrain:
            markers = Markers(added_tokens, executor.is_special_token)
            self._engine.use_grammars(executor.compile_grammar, markers)
        if (vision := executor.model.vision) is not None:
            self._engine.use_media(self._config.cache.media_memory_bytes, vision.max_tokens, executor.check_picture)
        await self._use_adapters(executor)
        room = executor.request_memory
        # An engine has log probabilities or results of inputs, never both.
        self._engine.ledgers.resize(
            max_logprob_bytes=room.logprob_bytes, max_id_bytes=room.id_bytes, max_pooled_bytes=room.logprob_bytes
        )
        self._engine.step_loop = StepLoop(
            self._started.core,
            loop,
            self._engine.report,
            self._failed,
            self._engine.starting,
            largest_step=executor.largest_step_seconds,
        )
        executor.on_failure(self._engine.step_loop.fail)
        self._engine.metrics.model_name = model.model
        freeze_loaded_objects()
        self._engine.step_loop.start()
        self._watchdog = self._watch_steps(self._engine.step_loop, loop)
        reserved = executor.unwritten_cache_bytes + executor.step_bytes + room.logprob_bytes + room.id_bytes
        reserved += 0 if self._engine.media is None else self._engine.media.most
        reserved += 0 if executor.lora is None or executor.ranks else executor.lora.max_bytes
        self._server.start_memory_guard(resident_memory() + reserved)
        self._service.serve(model, files, rank_messages(executor.ranks))
        self._engine.metrics.serving = True
        await self._server.set_serving(True)
        seconds = round(time.monotonic() - start, 3)
        log.info("serving", address=self._server.address, seconds=seconds, model_digest=model.model_digest)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            if self._engine.adapters is not None:
                tasks.create_task(self._engine.adapters.watch())

    async def _beat(self) -> None:
        load_log = LoadLog(self._settings.load_log_interval, time.monotonic())
        while True:
            await asyncio.sleep(BEAT_INTERVAL)
            now = time.monotonic()
            self._engine.registry.expire(now)
            self._engine.push_load()
            load_log.beat(now, self._service.load())

    async def _use_adapters(self, executor: Executor) -> None:
        """Know the adapters that are there from the start."""
        if executor.lora is None:
            return
        support = executor.lora
        self._engine.use_adapters(
            executor,
            support,
            lambda path: open_adapter(Path(path), support.targets, support.limits),
            max_waiting=self._config.scheduler.max_num_queued_reqs,
            lora_dir=self._settings.adapters.lora_dir,
        )
        assert self._engine.adapters is not None
        modules, model = lora_modules(self._settings.adapters.lora_modules), self._config.model.model
        await self._engine.adapters.begin(modules, executor.model.name, model)

    async def _start_engine(self, tokenizer_files: dict[str, bytes]) -> None:
        """Load in a thread that ends before the step loop's thread starts.

        Its end frees the libraries' per-thread memory. Otherwise the step loop's thread would allocate a second cuBLAS
        handle and workspace beyond the measured memory.
        """
        thread, clock, parallel = DaemonThreadPool(1, "start"), StageClock(), self._config.parallel
        seconds = parallel.worker_start_timeout if parallel.backend == "uni" else math.inf
        try:
            start = asyncio.get_running_loop().run_in_executor(
                thread, start_engine, self._config, StartupProgress(StageLog(), clock), self._settings.name
            )
            with start_limit(clock, seconds, report_fatal):
                self._started = await start
        finally:
            thread.shutdown(wait=self._started is not None)
        if self._started.executor.model.pooling is None:
            await asyncio.to_thread(warn_without_template, tokenizer_files)

    def _watch_steps(self, steps: StepLoop, loop: asyncio.AbstractEventLoop) -> Watchdog:
        """End the process when a step hangs, just as when a step raises; the supervisor restarts it."""

        def hung(seconds: float, limit: float) -> None:
            announced = asyncio.run_coroutine_threadsafe(self._announce_hang(), loop)
            stats = steps.stats
            log.critical(
                "a step hangs",
                seconds=round(seconds, 1),
                limit=round(limit, 1),
                longest_recent_step=round(steps.longest_step, 3),
                largest_step=round(steps.largest_step, 3),
                steps=steps.steps,
                running=stats.running_seqs,
                waiting=stats.waiting_reqs,
                stacks=thread_stacks(),
            )
            with suppress(CancelledError):  # the event loop has ended
                announced.result()

        watchdog = Watchdog("step watchdog", lambda: steps.turn, lambda: steps.step_timeout, hung)
        watchdog.start()
        return watchdog

    async def _drain(self, grace: float) -> None:
        """Refuse new requests, tell peers, and finish the present requests, unless the engine fails."""
        if self._engine.failure is not None:
            return  # no request would finish, and peers must not mistake a crash for a drain
        self._engine.metrics.serving = False
        self._engine.drain(grace)
        engine = self._engine
        left = await wait_until_idle(lambda: engine.registry.num_ledgers if engine.failure is None else 0, grace)
        log.info("drained", left=left)

    def _failed(self, error: BaseException) -> None:
        """End the process at once: the engine's state can no longer be trusted."""
        log.critical("the engine failed", error=str(error), exc_info=error)
        self._engine.fail("computing failed")
        self._server.drain.begin(ExitCode.FAILURE, grace=0.0)

    async def _announce_hang(self) -> None:
        """Tell peers before the watchdog ends the process: a step cannot be interrupted."""
        self._engine.fail("a step hangs")
        await self._server.health.set_hung()
        await asyncio.sleep(_FAREWELL)

    def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        for work in (self._engine.grammars, self._engine.adapters, self._engine.adapter_queue):
            if work is not None:
                work.close()
        loop = self._engine.step_loop
        if loop is not None and not loop.stop(_STOP_TIMEOUT):
            raise FatalError(f"the current step did not end within {_STOP_TIMEOUT:g} s", ExitCode.FAILURE)
        if self._started is not None:
            self._started.close()


def _capabilities(executor: Executor) -> list[str]:
    adapters = [] if executor.lora is None else [ADAPTERS]
    if executor.model.pooling is not None:
        return [POOLING, *adapters]
    can_constrain, sees = executor.grammar_support is None, executor.model.vision is not None
    known = [name for name in ENGINE_CAPABILITIES if can_constrain or name not in GRAMMAR_CAPABILITIES]
    return [*known, *([MEDIA] if sees else []), *adapters]
