"""The RPCs of ``InferenceService``: streams are read into the intake, and what their clients are owed is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import structlog
from ringline.inference.v1 import inference_pb2

from services.processor.admission.intake import Intake, usable_id
from services.processor.admission.resolve import render_chat
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.admission.validation import check_model, check_text_size, check_token_ids, refuse
from services.processor.client import MAX_REFUSALS, ClientStream
from services.processor.metrics import ProcessorMetrics
from services.processor.principal import Principal, authenticated, tenant_of
from services.processor.protobuf import refusal
from services.processor.served_models import ServedModel, ServedModels, named, no_model
from services.ring.errors import Code, Reason, Refused, Status
from services.rpc.calls import end_soon
from services.rpc.handlers import Incoming
from services.rpc.message_limits import is_quick, parse
from services.rpc.protobuf import abort, status_from_proto

log = structlog.get_logger(__name__)

_Request = TypeVar("_Request", inference_pb2.TokenizeRequest, inference_pb2.DetokenizeRequest)
_Response = TypeVar("_Response")
_Frame = TypeVar("_Frame", inference_pb2.GenerateRequest, inference_pb2.SessionRequest)


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """What one client's stream may do."""

    max_live_requests: int
    max_message_bytes: int
    stall_timeout: float
    drain_grace: float
    max_age: float
    """Seconds after which a session's client is asked for another one."""


class InferenceService:
    """The front door. Its methods take messages as bytes (``rpc_handlers``), and measure them first."""

    def __init__(
        self,
        vocabularies: ServedModels,
        intake: Intake,
        desk: TokenizationQueue,
        metrics: ProcessorMetrics,
        bounds: SessionBounds,
        tenant_header: str,
        policies: TenantPolicies,
    ) -> None:
        self._vocabularies = vocabularies
        self._intake = intake
        self._desk = desk
        self._metrics = metrics
        self._bounds = bounds
        self._tenant_header = tenant_header
        self._policies = policies

    # Generate and Session

    async def Generate(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        client = self._intake.open(await self._caller(context), context.invocation_metadata() or ())
        try:
            refused = await self._begin(client, data, context)
            del data  # what is kept of it is with the desk
            if refused is None:
                error = await self._write_generate(client, context)
            else:
                await self._send(client, context, refused)
                error = status_from_proto(refused.refused.status)
        except TimeoutError:
            error = self._stalled(client)
        finally:
            self._intake.close(client)
        if error is not None:
            await abort(context, error)

    async def _begin(
        self, client: ClientStream, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.GenerateResponse | None:
        """Begin the one request of a stream; returns what is answered to one that is refused."""
        name, arrived = "", time.monotonic()
        try:
            try:
                request = await self._parse(inference_pb2.GenerateRequest, data, client.tenant)
            except Refused as refused:
                self._metrics.request_refused(refused.status.code.name, client.tenant)
                raise
            name = usable_id(request)
            self._intake.begin(client, request, 1, arrived, context.time_remaining())
        except Refused as refused:
            return refusal(name, 1, refused.status)
        return None

    async def _parse(self, kind: type[_Frame], data: bytes, tenant: str) -> _Frame:
        """A message with a request. What takes long is done in a worker thread, before others are tokenized.

        One that is large, while no model is known, may be welcome once one is.
        """
        limits = self._vocabularies.request_limits
        work = partial(parse, kind, data, limits)
        try:
            if len(data) > limits.max_bytes or is_quick(kind, data):
                return work()
            return await self._desk.look_up(work, tenant, len(data), first=True)
        except Refused:
            if self._vocabularies.newest is None:
                raise no_model() from None
            raise

    async def Session(self, incoming: Incoming, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        client = self._intake.open(await self._caller(context), context.invocation_metadata() or ())
        loop, age, grace = asyncio.get_running_loop(), self._bounds.max_age, self._bounds.drain_grace
        timers = loop.call_later(age, client.drain), loop.call_later(age + grace, client.end_when_idle)
        try:
            end = await self._serve_session(client, incoming, context)
        finally:
            for timer in timers:
                timer.cancel()
            self._intake.close(client)
        if isinstance(end, Status):
            # Last: a client that takes nothing does not take its status either, and this waits until it does.
            await abort(context, end)
        if end is not None:
            try:
                raise end
            finally:
                del end  # it refers to this frame: together they would stay until Python looks for cycles

    async def _serve_session(
        self, client: ClientStream, incoming: Incoming, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Status | BaseException | None:
        """Read and write until the end; returns what ended it too early."""
        reader = asyncio.create_task(self._read_session(client, incoming))
        writer = asyncio.create_task(self._write_session(client, context, reader))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and (failure := reader.exception()) is not None:
                return failure
            await asyncio.wait((writer,))
            return writer.exception() or writer.result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read_session(self, client: ClientStream, incoming: Incoming) -> None:
        ordinal = 0
        while (data := await incoming.read()) is not None:
            ordinal, arrived = ordinal + 1, time.monotonic()
            try:
                frame = await self._parse(inference_pb2.SessionRequest, data, client.tenant)
            except Refused as refused:
                self._intake.refuse_frame(client, ordinal, refused.status)
            else:
                self._intake.session_frame(client, frame, ordinal, arrived)
                del frame  # what is kept of it is with the desk
            del data  # it may be long until the next one comes
            while client.num_refusals > MAX_REFUSALS:
                client.room_for_refusals.clear()
                await client.room_for_refusals.wait()

    async def _write_generate(self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any]) -> Status | None:
        """Write until the request has ended; returns the status of a request that failed."""
        error: Status | None = None
        while True:
            await client.wake.wait()
            client.wake.clear()
            while responses := _packed(client.take()):
                for response, failure in responses:
                    await self._send(client, context, response)
                    error = failure or error
                client.written()
            if client.num_live == 0:
                return error

    async def _write_session(
        self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any], reader: asyncio.Task[None]
    ) -> Status | None:
        """Write until the client has closed its side, or was asked to, and every request has ended; or it stalls."""
        try:
            await self._write_news(client, context, reader)
        except TimeoutError:  # not raised further: it and its task would refer to each other
            return self._stalled(client)
        return None

    async def _write_news(
        self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any], reader: asyncio.Task[None]
    ) -> None:
        limits = inference_pb2.SessionLimits(
            max_live_requests=self._bounds.max_live_requests,
            max_message_bytes=self._bounds.max_message_bytes,  # whatever models come: a session outlives them
            stall_timeout_ms=round(self._bounds.stall_timeout * 1000),
        )
        await self._send(client, context, inference_pb2.SessionResponse(limits=limits))
        reader.add_done_callback(lambda _: client.wake.set())
        draining_told = False
        while not ((reader.done() or client.over) and client.num_live == 0 and client.num_refusals == 0):
            await client.wake.wait()
            client.wake.clear()
            if (self._intake.draining or client.draining) and not draining_told:
                draining_told = True
                draining = inference_pb2.SessionResponse()
                draining.draining.grace_ms = round(self._bounds.drain_grace * 1000)
                await self._send(client, context, draining)
            while (frame := client.take()) is not None:
                packed, frame = frame.SerializeToString(), None
                await self._send(client, context, packed)
                client.written()

    async def _caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> Principal:
        """Who asks; ends the call where that is not clear."""
        if (caller := authenticated.get()) is not None:
            return caller
        try:
            return Principal(tenant_of(context.invocation_metadata() or (), self._tenant_header))
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, tenant="")
            await abort(context, refused.status)

    async def _send(self, client: ClientStream, context: grpc.aio.ServicerContext[Any, Any], response: Any) -> None:
        async with client.writing(self._bounds.stall_timeout):
            await context.write(response)

    def _stalled(self, client: ClientStream) -> Status:
        reason = client.stall(self._bounds.stall_timeout)
        log.info("client stalled", reason=reason)
        end_soon()
        return Status(Code.RESOURCE_EXHAUSTED, f"the client does not read: {reason}", given_reason=Reason.STALLED)

    # The rest

    async def Tokenize(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.TokenizeResponse:
        return await self._look_up(tokenize, inference_pb2.TokenizeRequest, data, context)

    async def Detokenize(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.DetokenizeResponse:
        return await self._look_up(detokenize, inference_pb2.DetokenizeRequest, data, context)

    async def ListModels(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        vocabulary, caller = self._vocabularies.newest, await self._caller(context)
        permitted = vocabulary is not None and self._policies.permits(caller.tenant, vocabulary.limits.name)
        return list_models(vocabulary if permitted else None)

    async def _look_up(
        self,
        look_up: Callable[[_Request, ServedModel], _Response],
        kind: type[_Request],
        data: bytes,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> _Response:
        """Off the event loop; a refusal becomes the RPC's status."""
        tenant = (await self._caller(context)).tenant
        served, limits = self._vocabularies.served(), self._vocabularies.lookup_limits

        def known() -> _Response:
            request = parse(kind, data, limits)
            if (vocabulary := named(request.model, served)) is None:
                raise no_model()
            self._policies.check_model(tenant, vocabulary.limits.name)
            return look_up(request, vocabulary)

        try:
            return await self._desk.look_up(known, tenant, len(data))
        except Refused as refused:
            await abort(context, refused.status)


def _packed(frame: inference_pb2.SessionResponse | None) -> list[tuple[bytes, Status | None]]:
    """The responses in a frame, each with the status that it ends its request with, if it does."""
    return [] if frame is None else [(one.SerializeToString(), _failure_in(one)) for one in frame.responses]


def _failure_in(response: inference_pb2.GenerateResponse) -> Status | None:
    """The status that a response ends its request or choice with, if it does."""
    if response.HasField("refused"):
        return status_from_proto(response.refused.status)
    if response.HasField("choice_finished") and response.choice_finished.HasField("error"):
        return status_from_proto(response.choice_finished.error)
    return None


def tokenize(request: inference_pb2.TokenizeRequest, vocabulary: ServedModel) -> inference_pb2.TokenizeResponse:
    """The ids of a text or chat, as a generation would see them. Raises ``Refused``."""
    check_model(request.model, vocabulary.limits)
    rendered = ""
    match request.WhichOneof("input"):
        case "text":
            text, special = request.text, True
            check_text_size("text", text, vocabulary.limits)
        case "chat":
            text = rendered = render_chat(request.chat, vocabulary)
            special = False
        case _:
            raise refuse("input", "none is set: expected text or chat")
    if request.HasField("add_special_tokens"):
        special = request.add_special_tokens
    return inference_pb2.TokenizeResponse(
        token_ids=vocabulary.tokenizer.encode(text, add_special_tokens=special),
        rendered=rendered,
        max_model_len=vocabulary.limits.max_model_len,
    )


def detokenize(request: inference_pb2.DetokenizeRequest, vocabulary: ServedModel) -> inference_pb2.DetokenizeResponse:
    """The text of ids, decoded as a whole. Raises ``Refused``."""
    check_model(request.model, vocabulary.limits)
    limits = vocabulary.limits
    if len(request.token_ids) > limits.max_model_len:
        problem = f"{len(request.token_ids)} ids: expected at most {limits.max_model_len}, the model's context"
        raise refuse("token_ids", problem)
    ids = list(request.token_ids)
    check_token_ids("token_ids", ids, limits)
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    size = vocabulary.tokenizer.text_bytes(ids, skip_special_tokens=skip)
    if size > limits.max_text_bytes:
        raise refuse("token_ids", f"their text has {size} bytes: expected at most {limits.max_text_bytes}")
    return inference_pb2.DetokenizeResponse(text=vocabulary.tokenizer.decode(ids, skip_special_tokens=skip))


def list_models(vocabulary: ServedModel | None) -> inference_pb2.ListModelsResponse:
    """What can be asked for; nothing, as long as no engine was reached."""
    if vocabulary is None:
        return inference_pb2.ListModelsResponse()
    model = vocabulary.model
    return inference_pb2.ListModelsResponse(
        models=[
            inference_pb2.Model(
                name=model.model,
                architecture=model.architecture,
                vocab_size=model.vocab_size,
                max_model_len=model.max_model_len,
                eos_token_ids=model.eos_token_ids,
                has_chat_template=bool(vocabulary.chat.names),
                tokenizer_digest=model.tokenizer_digest,
                model_digest=model.model_digest,
                capabilities=sorted(vocabulary.capabilities),
            )
        ]
    )
