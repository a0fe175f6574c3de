"""The RPCs of ``InferenceService``: frames in, requests begun and ended, news written out."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
import structlog
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.processor.client import MAX_REFUSALS, ClientRequest, ClientStream
from services.processor.desk import Desk
from services.processor.lookups import detokenize, list_models, tokenize
from services.processor.responses import refusal
from services.processor.ring import Ring
from services.processor.tenants import tenant_of
from services.processor.validation import MAX_REQUEST_ID_BYTES, check_request_id, refuse
from services.processor.vocabulary import Vocabulary, VocabularySource
from services.ring.events import Cause, Code, Refused, Status
from services.ring.identity import PeerId, ring_id
from services.runtime.metrics import ProcessorMetrics
from services.runtime.wire import status_from_proto, status_to_proto

log = structlog.get_logger(__name__)

_Request = TypeVar("_Request", inference_pb2.TokenizeRequest, inference_pb2.DetokenizeRequest)
_Response = TypeVar("_Response")
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """What one client's stream may do."""

    max_live_requests: int
    max_message_bytes: int
    stall_timeout: float
    drain_grace: float


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """The front door."""

    def __init__(
        self,
        me: PeerId,
        vocabulary: VocabularySource,
        ring: Ring,
        desk: Desk,
        metrics: ProcessorMetrics,
        bounds: SessionBounds,
        tenant_header: str,
    ) -> None:
        self._vocabulary = vocabulary
        self._ring = ring
        self._desk = desk
        self._metrics = metrics
        self._bounds = bounds
        self._tenant_header = tenant_header
        self._me = me
        self._counter = itertools.count(1)
        self._sessions: set[ClientStream] = set()
        self.draining = False

    def drain(self) -> None:
        """Take nothing new; every session is told."""
        self.draining = True
        for client in self._sessions:
            client.wake.set()

    @property
    def num_open(self) -> int:
        """Requests whose terminals have not all been taken by their clients."""
        return sum(client.num_live for client in self._sessions)

    # Generate and Session

    async def Generate(  # type: ignore[override]  # it writes through the context
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        client = ClientStream(await self._tenant(context))
        self._sessions.add(client)
        try:
            error = await self._answer(client, request, context)
        except TimeoutError:
            error = self._stalled()
        finally:
            self._release(client)
        if error is not None:
            await _abort(context, error)

    async def _answer(
        self,
        client: ClientStream,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Status | None:
        """Write one request's answer; returns the status of one that failed."""
        try:
            self._begin(client, request, 1, context.time_remaining())
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name)
            await self._send(context, refusal(_usable_id(request), 1, refused.status))
            return refused.status
        return await self._write_generate(client, context)

    async def Session(  # type: ignore[override]  # it writes through the context
        self,
        request_iterator: AsyncIterator[inference_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        client = ClientStream(await self._tenant(context))
        self._sessions.add(client)
        reader = asyncio.create_task(self._read_session(client, request_iterator))
        writer = asyncio.create_task(self._write_session(client, context, reader))
        error: Status | None = None
        try:
            done, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except TimeoutError:
            error = self._stalled()
        finally:
            reader.cancel()
            writer.cancel()
            self._release(client)
            await asyncio.gather(reader, writer, return_exceptions=True)
        if error is not None:
            # Last: a client that takes nothing does not take its status either, and this waits until it does.
            await _abort(context, error)

    async def _read_session(self, client: ClientStream, frames: AsyncIterator[inference_pb2.SessionRequest]) -> None:
        ordinal = 0
        async for frame in frames:
            ordinal += 1
            match frame.WhichOneof("frame"):
                case "generate":
                    self._session_request(client, frame.generate, ordinal)
                case "cancel":
                    call = client.find(frame.cancel.request_id)
                    if call is not None:
                        self._end(call, Cause.CANCELLED)
                case _:
                    status = Status(Code.INVALID_ARGUMENT, "frame: none is set: expected generate or cancel")
                    self._refuse(client, "", ordinal, status)
            while client.num_refusals > MAX_REFUSALS:
                client.room_for_refusals.clear()
                await client.room_for_refusals.wait()

    def _session_request(self, client: ClientStream, request: inference_pb2.GenerateRequest, ordinal: int) -> None:
        try:
            if not request.request_id:
                raise refuse("request_id", "empty: a session needs a name for each of its requests")
            if client.find(request.request_id) is not None:
                raise Refused(
                    Code.INVALID_ARGUMENT, f"request_id: {request.request_id[:80]!r} is live on this session already"
                )
            if client.num_live >= self._bounds.max_live_requests:
                most = self._bounds.max_live_requests
                raise Refused(Code.RESOURCE_EXHAUSTED, f"this session has {most} live requests", retry_after_ms=100)
            self._begin(client, request, ordinal, None)
        except Refused as refused:
            self._refuse(client, _usable_id(request), ordinal, refused.status)

    def _begin(
        self,
        client: ClientStream,
        request: inference_pb2.GenerateRequest,
        ordinal: int,
        call_timeout: float | None,
    ) -> None:
        """Begin a request; raises ``Refused``."""
        if self.draining:
            raise Refused(Code.UNAVAILABLE, "this processor is draining: try another", retry_after_ms=0)
        check_request_id(request.request_id)
        if request.HasField("timeout_ms") and request.timeout_ms == 0:
            raise refuse("timeout_ms", "0 is out of range: expected at least 1")
        now = time.monotonic()
        timeouts = [request.timeout_ms / 1000] if request.HasField("timeout_ms") else []
        if call_timeout is not None:
            timeouts.append(call_timeout)
        call = ClientRequest(
            ring_id=ring_id(self._me.incarnation, next(self._counter)),
            client_id=request.request_id,
            ordinal=ordinal,
            client=client,
            arrived=now,
            deadline=now + min(timeouts) if timeouts else None,
        )
        self._desk.admit(call, request)
        client.add(call)
        if timeouts:
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(min(timeouts), self._end, call, Cause.DEADLINE)

    def _refuse(self, client: ClientStream, client_id: str, ordinal: int, status: Status) -> None:
        """A frame of a session does not become a request."""
        self._metrics.request_refused(status.code.name)
        client.refuse(client_id, ordinal, status)

    def _end(self, call: ClientRequest, cause: Cause) -> None:
        """End a request here and now, wherever it is."""
        self._desk.drop(call)
        self._ring.end(call, cause)

    def _release(self, client: ClientStream) -> None:
        """The client's stream is over: what it had under way ends, and nothing is kept for it."""
        self._sessions.discard(client)
        for call in client.requests():
            self._end(call, Cause.CANCELLED)
        client.clear()

    async def _write_generate(self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any]) -> Status | None:
        """Write until the last terminal; returns the status of a request that failed."""
        error: Status | None = None
        while True:
            await client.wake.wait()
            client.wake.clear()
            for response in client.take():
                await self._send(context, response)
                if response.HasField("terminal") and response.terminal.HasField("error"):
                    error = status_from_proto(response.terminal.error)
            if client.num_live == 0:
                return error

    async def _write_session(
        self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any], reader: asyncio.Task[None]
    ) -> None:
        """Write until the client has closed its side and has every terminal."""
        limits = inference_pb2.SessionLimits(
            max_live_requests=self._bounds.max_live_requests,
            max_message_bytes=self._bounds.max_message_bytes,
            stall_timeout_ms=round(self._bounds.stall_timeout * 1000),
        )
        await self._send(context, inference_pb2.SessionResponse(limits=limits))
        reader.add_done_callback(lambda _: client.wake.set())
        draining_told = False
        while not (reader.done() and client.num_live == 0 and client.num_refusals == 0):
            await client.wake.wait()
            client.wake.clear()
            if self.draining and not draining_told:
                draining_told = True
                draining = inference_pb2.SessionResponse()
                draining.draining.grace_ms = round(self._bounds.drain_grace * 1000)
                await self._send(context, draining)
            while responses := client.take():
                await self._send(context, inference_pb2.SessionResponse(responses=responses))

    async def _tenant(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Who asks; ends the call where that is not clear."""
        try:
            return tenant_of(context.invocation_metadata() or (), self._tenant_header)
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name)
            await _abort(context, refused.status)

    async def _send(self, context: grpc.aio.ServicerContext[Any, Any], response: Any) -> None:
        async with asyncio.timeout(self._bounds.stall_timeout):
            await context.write(response)

    def _stalled(self) -> Status:
        log.info("client stalled")
        message = f"the client took nothing for {self._bounds.stall_timeout:g} s"
        return Status(Code.RESOURCE_EXHAUSTED, message)

    # The rest

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.TokenizeResponse:
        return await self._look_up(tokenize, request, context)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.DetokenizeResponse:
        return await self._look_up(detokenize, request, context)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        return list_models(self._vocabulary.current)

    async def _look_up(
        self,
        look_up: Callable[[_Request, Vocabulary], _Response],
        request: _Request,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> _Response:
        """Off the event loop; a refusal becomes the RPC's status."""

        def known() -> _Response:
            vocabulary = self._vocabulary.current
            if vocabulary is None:
                raise Refused(Code.UNAVAILABLE, "no engine has said yet what it serves", retry_after_ms=1000)
            return look_up(request, vocabulary)

        tenant = await self._tenant(context)
        try:
            return await self._desk.run(known, tenant, request.ByteSize())
        except Refused as refused:
            await _abort(context, refused.status)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    """End the RPC with a status and its details, such as RetryInfo."""
    details = status_to_proto(status).SerializeToString()
    await context.abort(_CODES[status.code], status.message, (("grpc-status-details-bin", details),))


def _usable_id(request: inference_pb2.GenerateRequest) -> str:
    """The client's name for a refused request; empty where it is too long to be one."""
    return request.request_id if len(request.request_id.encode()) <= MAX_REQUEST_ID_BYTES else ""
