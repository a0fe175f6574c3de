"""The RPCs of ``EngineService``; ``attach_stream`` serves the Attach streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ringline.engine.v1 import engine_pb2

from engine_core.engine import EngineCore
from services.common.links.zone import tell_zone
from services.common.rpc.handlers import Context, RequestStream
from services.common.rpc.message_limits import SMALL_MESSAGE, parse
from services.common.rpc.output_stream import write_in_time
from services.engine.adapters.control import AdapterControl
from services.engine.adapters.messages import adapter_message, listed_message
from services.engine.async_engine import AsyncEngine
from services.engine.attach_stream import ATTACHERS, SUBMITTERS, Attachment
from services.engine.profile import DEFAULT_TIMEOUT_MS, MAX_STEPS, MAX_TIMEOUT_MS, StepProfile
from services.engine.step_loop import MAX_CALLS, StepLoop, TooManyCalls
from services.engine.tokenizer import chunks
from services.ring.errors import Code, Reason, Refused, invalid_field
from services.ring.identity import PeerId
from services.ring.limits import MAX_LISTED_ADAPTERS
from services.ring.roles import Role

METHOD_ROLES = {
    "Attach": ATTACHERS,
    "GetModel": ATTACHERS,
    "GetTokenizer": ATTACHERS,
    "GetLoad": {Role.OPERATOR},
    "Drain": {Role.OPERATOR},
    "ResetPrefixCache": {Role.OPERATOR},
    "Profile": {Role.OPERATOR},
    "LoadAdapter": SUBMITTERS,
    "UnloadAdapter": SUBMITTERS,
    "ListAdapters": SUBMITTERS,
}
"""Roles that may call each method."""
_CALL_TIMEOUT = 60.0
"""Seconds that an RPC waits for the current step."""


class EngineService:
    """Methods take messages as bytes (see ``services.common.rpc.handlers``) and answer UNAVAILABLE before ``serve``."""

    def __init__(
        self,
        engine: AsyncEngine,
        me: PeerId,
        *,
        stall_timeout: float,
        max_message_bytes: int,
        drain: Callable[[float | None], None],
        zone: str | None = None,
    ) -> None:
        """``drain`` starts the drain of the process, with a grace in seconds (None: the configured one)."""
        self._engine = engine
        self._me = me
        self._stall_timeout = stall_timeout
        self._max_message_bytes = max_message_bytes
        self._drain = drain
        self._zone = zone
        self._model: engine_pb2.GetModelResponse | None = None
        self._tokenizer: dict[str, bytes] = {}
        self._ranks: Sequence[engine_pb2.RankProcess] = ()
        self._model_with_adapters = -1, b""
        """The model's message with the adapters of a revision of the registry."""

    def serve(
        self,
        model: engine_pb2.GetModelResponse,
        tokenizer: dict[str, bytes],
        ranks: Sequence[engine_pb2.RankProcess] = (),
    ) -> None:
        """Start to answer; call it once the engine has loaded."""
        model.name, model.incarnation = self._me.name, self._me.incarnation
        self._model = model
        self._tokenizer = tokenizer
        self._ranks = ranks

    async def Attach(self, incoming: RequestStream, context: Context) -> None:
        self._loaded()
        attachment = Attachment(
            self._engine,
            self._me,
            self.load,
            stall_timeout=self._stall_timeout,
            max_message_bytes=self._max_message_bytes,
        )
        await tell_zone(context, self._zone)
        await attachment.run(incoming, context)

    async def GetModel(self, data: bytes, context: Context) -> engine_pb2.GetModelResponse | bytes:
        self._loaded()
        assert self._model is not None
        return self._model if self._engine.adapters is None else self._with_adapters(self._model)

    def _with_adapters(self, model: engine_pb2.GetModelResponse) -> bytes:
        """The answer of GetModel, made when a name has changed: there may be thousands."""
        assert self._engine.adapters is not None
        registry = self._engine.adapters.registry
        if self._model_with_adapters[0] != registry.revision:
            names = engine_pb2.GetModelResponse(adapters=map(adapter_message, registry.current()))
            self._model_with_adapters = registry.revision, model.SerializeToString() + names.SerializeToString()
        return self._model_with_adapters[1]

    async def GetTokenizer(self, data: bytes, context: Context) -> None:
        self._loaded()
        for chunk in chunks(self._tokenizer):
            await write_in_time(context, chunk, self._stall_timeout, reader="peer")

    async def GetLoad(self, data: bytes, context: Context) -> engine_pb2.GetLoadResponse:
        self._loaded()
        return engine_pb2.GetLoadResponse(load=self.load(), ranks=self._ranks)

    async def Drain(self, data: bytes, context: Context) -> engine_pb2.DrainResponse:
        request = parse(engine_pb2.DrainRequest, data, SMALL_MESSAGE)
        grace = request.grace_ms / 1000 if request.HasField("grace_ms") else None
        live = self._engine.registry.num_unfinished
        self._drain(grace)
        return engine_pb2.DrainResponse(live_requests=live)

    async def ResetPrefixCache(self, data: bytes, context: Context) -> engine_pb2.ResetPrefixCacheResponse:
        loop = self._loaded()
        blocks = await self._between_steps(loop, EngineCore.reset_prefix_cache)
        return engine_pb2.ResetPrefixCacheResponse(blocks=blocks)

    async def Profile(self, data: bytes, context: Context) -> engine_pb2.ProfileResponse:
        request = parse(engine_pb2.ProfileRequest, data, SMALL_MESSAGE)
        loop = self._loaded()
        if not 1 <= request.steps <= MAX_STEPS:
            problem = f"{request.steps} is out of range: expected 1 to {MAX_STEPS}"
            raise invalid_field("steps", problem)
        timeout_ms = request.timeout_ms if request.HasField("timeout_ms") else DEFAULT_TIMEOUT_MS
        if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            problem = f"{timeout_ms} is out of range: expected 1 to {MAX_TIMEOUT_MS}"
            raise invalid_field("timeout_ms", problem)
        profile = StepProfile(request.steps)

        def start(_: EngineCore) -> bool:
            if loop.recorder is not None:
                return False
            profile.start()
            loop.recorder = profile
            return True

        def finish(_: EngineCore) -> None:
            profile.finish()
            if loop.recorder is profile:
                loop.recorder = None

        if not await self._between_steps(loop, start):
            raise Refused(Code.FAILED_PRECONDITION, "another profile is being recorded; retry later")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(asyncio.wrap_future(profile.result))
        except TimeoutError:
            await self._between_steps(loop, finish)
            return profile.result.result()
        finally:
            if not profile.result.done():
                with suppress(TooManyCalls):  # then the profile ends after its last step
                    loop.call(finish)  # the caller is gone

    async def LoadAdapter(self, data: bytes, context: Context) -> engine_pb2.LoadAdapterResponse:
        request = parse(engine_pb2.LoadAdapterRequest, data, SMALL_MESSAGE)
        known, before = await self._adapters().load(request.name, request.path, replace=request.replace)
        return engine_pb2.LoadAdapterResponse(
            adapter=adapter_message(known), replaced_digest="" if before is None else before.file.digest
        )

    async def UnloadAdapter(self, data: bytes, context: Context) -> engine_pb2.UnloadAdapterResponse:
        request = parse(engine_pb2.UnloadAdapterRequest, data, SMALL_MESSAGE)
        unloaded = self._adapters().unload(request.name)
        return engine_pb2.UnloadAdapterResponse(adapter=adapter_message(unloaded), live_requests=len(unloaded.users))

    async def ListAdapters(self, data: bytes, context: Context) -> engine_pb2.ListAdaptersResponse:
        request = parse(engine_pb2.ListAdaptersRequest, data, SMALL_MESSAGE)
        registry = self._adapters().registry
        limit = request.limit if request.HasField("limit") else MAX_LISTED_ADAPTERS
        if not 1 <= limit <= MAX_LISTED_ADAPTERS:
            raise invalid_field("limit", f"{limit} is out of range: expected 1 to {MAX_LISTED_ADAPTERS}")
        listed, more = registry.page(request.after, limit)
        return engine_pb2.ListAdaptersResponse(adapters=[listed_message(registry, each) for each in listed], more=more)

    def load(self) -> engine_pb2.Load:
        """The load now, without waiting for the current step."""
        loop = self._engine.step_loop
        if loop is None:
            return engine_pb2.Load()
        stats, adapters = loop.stats, self._engine.adapter_queue
        return engine_pb2.Load(
            steps=loop.steps,
            longest_step_ms=round(loop.longest_step * 1000),
            step_timeout_ms=round(loop.step_timeout * 1000),
            running_choices=stats.running_seqs,
            waiting_requests=stats.waiting_reqs,
            waiting_tokens=stats.queued_tokens,
            kv_usage=stats.kv_usage,
            prefix_queries=stats.prefix_query_tokens,
            prefix_hits=stats.prefix_hit_tokens,
            preemptions=stats.preemptions,
            ledgers=self._engine.registry.num_ledgers,
            blocks_used=stats.kv_blocks_used,
            blocks_total=stats.kv_blocks,
            generated_tokens=stats.generated_tokens,
            states_used=stats.state_slots_used,
            states_total=stats.state_slots,
            drafts=stats.drafts,
            draft_tokens=stats.draft_tokens,
            accepted_draft_tokens=stats.accepted_draft_tokens,
            accepted_by_position=stats.accepted_by_position,
            adapters_loaded=0 if adapters is None else adapters.num_loaded,
            adapters_active=0 if adapters is None else adapters.num_active,
            adapter_requests_waiting=0 if adapters is None else len(adapters),
        )

    def _adapters(self) -> AdapterControl:
        self._loaded()
        if self._engine.adapters is None:
            message = "this engine serves no adapters: start it with --enable-lora"
            raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.CAPABILITY_MISSING)
        return self._engine.adapters

    def _loaded(self) -> StepLoop:
        if self._model is None or self._engine.step_loop is None:
            raise Refused(Code.UNAVAILABLE, "the engine is loading; retry later", retry_after_ms=1000)
        if self._engine.failure is not None:  # a peer that could attach again would mistake this for a lost link
            message = f"{self._engine.failure}: this engine is stopping; use another"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0)
        return self._engine.step_loop

    async def _between_steps(self, loop: StepLoop, function: Callable[[EngineCore], Any]) -> Any:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                return await asyncio.wrap_future(loop.call(function))
        except TooManyCalls:
            message = f"limit of {MAX_CALLS} calls waiting for the current step reached; retry later"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms=1000) from None
        except TimeoutError:
            message = f"the current step did not end within {_CALL_TIMEOUT:g} s; retry later"
            raise Refused(Code.DEADLINE_EXCEEDED, message) from None
