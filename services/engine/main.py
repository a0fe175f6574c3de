"""The engine process: bind, load stage by stage, serve, drain."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError
from contextlib import suppress

import structlog
from ringline.engine.v1 import engine_pb2

from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, EngineError
from engine_core.model_loader.digest import digest_of
from engine_core.progress import Stage, StartupProgress
from engine_core.startup import StartedEngine, start_engine
from services.config.addresses import new_incarnation
from services.config.errors import ExitCode, FatalError, unusable
from services.config.settings import EngineServiceSettings
from services.engine.attach_links import AttachLinks
from services.engine.protobuf import model_message
from services.engine.service import METHOD_ROLES, EngineService
from services.engine.step_loop import StepLoop, StepReport
from services.engine.tokenizer import fingerprint_of, read_tokenizer
from services.engine.tracing import EngineTraces
from services.process.memory import spare_what_is_loaded
from services.process.run import Workers, die_with_parent, run_service
from services.process.watchdog import Watchdog, stacks
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL
from services.rpc.memory_guard import resident
from services.rpc.server import Server, wait_until_idle
from services.security.credentials import listening_credentials, service_gate
from services.telemetry.logs import configure_logs, warn_of_unknown_variables
from services.telemetry.metrics_endpoint import start_metrics
from services.telemetry.tracing import start_tracing

log = structlog.get_logger(__name__)

DESCRIPTION = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
_STOP_TIMEOUT = 10.0
"""Seconds that the step under way has to end when the process does."""
_FAREWELL = 0.1
"""Seconds for the streams to end that are told of a hang."""
_LEDGERS_PER_REQUEST = 4
"""Ledgers held at most, in multiples of what may wait and run: finished ones are held until Done."""
_ADVANCE_INTERVAL = 0.5
"""Seconds between two lines about one stage."""


def run(settings: EngineServiceSettings, config: EngineConfig) -> int:
    """Run the process; returns its exit code."""
    die_with_parent()
    configure_logs(settings.telemetry, "engine")
    warn_of_unknown_variables()

    async def main() -> int:
        try:
            return await _Engine(settings, config).run()
        except ConfigError as error:
            raise FatalError(unusable(error.option, error.value, error.accepted), ExitCode.USAGE) from error

    return run_service(main, {EngineError: ExitCode.STARTUP})


class _Engine:
    """One life of the process."""

    def __init__(self, settings: EngineServiceSettings, config: EngineConfig) -> None:
        scheduler = config.scheduler
        self._settings = settings
        self._config = config
        self._tracing = start_tracing(settings)
        self._hub = AttachLinks(
            orphan_grace=settings.orphan_grace,
            max_ledgers=_LEDGERS_PER_REQUEST * (scheduler.max_num_queued_reqs + scheduler.max_num_seqs),
            traces=EngineTraces(self._tracing) if self._tracing is not None else None,
        )
        self._server = Server(
            settings.server,
            [DESCRIPTION.full_name],
            credentials=listening_credentials(settings, internal=True),
            interceptors=service_gate(settings, DESCRIPTION, METHOD_ROLES),
        )
        self._service = EngineService(
            self._hub,
            PeerId(settings.name, new_incarnation()),
            stall_timeout=settings.server.stall_timeout,
            max_message_bytes=settings.server.max_message_bytes,
            drain=lambda grace: self._server.request_stop(grace=grace),
        )
        self._server.serve(DESCRIPTION, self._service)
        self._engine: StartedEngine | None = None
        self._watchdog: Watchdog | None = None
        """Of the steps."""

    async def run(self) -> int:
        self._hub.metrics.open_calls = lambda: self._server.open_calls
        metrics = start_metrics(self._settings, self._hub.metrics.registry, self._server.health.pages)
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
        # The tokenizer first: its files stay in this process, and are seen when memory is measured.
        files = await asyncio.to_thread(read_tokenizer, self._config.model)
        tokenizer_digest = await asyncio.to_thread(fingerprint_of, files)
        await self._start_engine()
        assert self._engine is not None
        executor = self._engine.executor
        model = model_message(
            executor.model,
            executor.cache_size,
            self._config.scheduler,
            tokenizer_digest=tokenizer_digest,
            model_digest=digest_of(executor.model_digest, tokenizer_digest),
            numerics=executor.numerics,
        )
        loop = asyncio.get_running_loop()
        self._hub.model, self._hub.model_digest = executor.model, model.model_digest
        room = executor.request_memory
        self._hub.ledgers.resize(max_logprob_bytes=room.logprob_bytes, max_id_bytes=room.id_bytes)
        self._hub.step_loop = StepLoop(
            self._engine.core,
            loop,
            self._report,
            self._failed,
            self._hub.starting,
            largest_step=executor.largest_step_seconds,
        )
        self._hub.metrics.model_name = model.model
        spare_what_is_loaded()
        self._hub.step_loop.start()
        self._watchdog = self._watch_steps(self._hub.step_loop, loop)
        set_aside = executor.unwritten_cache_bytes + executor.step_bytes + room.logprob_bytes + room.id_bytes
        self._server.guard_memory(resident() + set_aside)
        self._service.serve(model, files)
        self._hub.metrics.serving = True
        await self._server.set_serving(True)
        seconds = round(time.monotonic() - start, 3)
        log.info("serving", address=self._server.address, seconds=seconds, model_digest=model.model_digest)
        while True:
            await asyncio.sleep(BEAT_INTERVAL)
            self._hub.switchboard.expire(time.monotonic())
            self._hub.push_load()

    async def _start_engine(self) -> None:
        """In a thread that ends with it: what libraries keep for a thread is free for the one that computes steps.

        cuBLAS's handle and its workspace on a GPU would else be made a second time, behind the measured memory.
        """
        thread = Workers(1, "start")
        try:
            start = asyncio.get_running_loop().run_in_executor(
                thread, start_engine, self._config, StartupProgress(StageLog())
            )
            self._engine = await start
        finally:
            thread.shutdown(wait=self._engine is not None)

    def _watch_steps(self, steps: StepLoop, loop: asyncio.AbstractEventLoop) -> Watchdog:
        """End the process when a step hangs, as when one raises; its supervisor starts it again."""

        def hung(seconds: float, limit: float) -> None:
            telling = asyncio.run_coroutine_threadsafe(self._tell_of_hang(), loop)
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
                stacks=stacks(),
            )
            with suppress(CancelledError):  # the event loop has ended
                telling.result()

        watchdog = Watchdog("step watchdog", lambda: steps.turn, lambda: steps.step_timeout, hung)
        watchdog.start()
        return watchdog

    async def _drain(self, grace: float) -> None:
        """Finish what is there; peers are told, and nothing new is taken."""
        if self._hub.failure is not None:
            return  # nothing will be finished; and an engine that drains is not one that died
        self._hub.metrics.serving = False
        self._hub.drain(grace)
        log.info("drained", left=await wait_until_idle(lambda: self._hub.switchboard.num_ledgers, grace))

    def _report(self, report: StepReport) -> None:
        """Outputs that cannot be entered into the ledger would be lost without a word."""
        try:
            self._hub.report(report)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """A step raised: the engine's state cannot be trusted, so the process ends, at once."""
        log.critical("a step failed", error=str(error), exc_info=error)
        self._hub.fail("a step failed")
        self._server.request_stop(ExitCode.FAILURE, grace=0.0)

    async def _tell_of_hang(self) -> None:
        """The step under way cannot be interrupted: peers are told, and the watchdog ends the process."""
        self._hub.fail("a step hangs")
        await self._server.health.set_hung()
        await asyncio.sleep(_FAREWELL)

    def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        loop = self._hub.step_loop
        if loop is not None and not loop.stop(_STOP_TIMEOUT):
            raise FatalError(f"the step under way did not end within {_STOP_TIMEOUT:g} s", ExitCode.FAILURE)
        if self._engine is not None:
            self._engine.close()


class StageLog:
    """A ``StartupObserver`` that logs."""

    def __init__(self) -> None:
        self._told = 0.0

    def stage_started(self, stage: Stage) -> None:
        """A stage begins."""
        self._told = time.monotonic()
        log.info("stage started", name=stage.name)

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
        """A stage got further."""
        now = time.monotonic()
        if now - self._told >= _ADVANCE_INTERVAL or done == total:
            self._told = now
            log.info("stage advanced", name=stage.name, done_bytes=done, total_bytes=total)

    def stage_finished(self, stage: Stage) -> None:
        """A stage is over."""
        seconds = None if stage.seconds is None else round(stage.seconds, 3)
        log.info("stage", name=stage.name, seconds=seconds, bytes=stage.bytes, detail=stage.detail)
