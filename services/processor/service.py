"""The RPCs of ``InferenceService``: frames go to ``Intake``, and responses are written as fast as clients read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from ringline.inference.v1 import inference_pb2

from services.common.rpc.handlers import RequestStream
from services.common.rpc.message_limits import SMALL_MESSAGE, MessageLimits, is_cheap_to_parse, parse
from services.common.rpc.open_calls import end_call_soon
from services.common.rpc.shared_messages import abort, status_from_proto
from services.processor.adapter_control import AdapterControl
from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.picture_stage import PictureStage
from services.processor.admission.prompt_resolution import prompt_with_pictures, render_chat
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.admission.validation import check_text_size, check_token_ids, refuse
from services.processor.client_stream import MAX_REFUSALS, ClientStream
from services.processor.inference_messages import refusal
from services.processor.intake import Intake, usable_id
from services.processor.listed_models import ListedModels
from services.processor.media.chat_pictures import (
    ChatPictures,
    PictureSource,
    check_pictures,
    check_sources,
    take_sources,
)
from services.processor.metrics import ProcessorMetrics
from services.processor.pooling.plan import PooledAnswer, PoolingMessage
from services.processor.principal import Principal, authenticated, tenant_of
from services.processor.served_models import LookupModels, ServedModel, ServedModels
from services.ring.errors import Code, Reason, Refused, Status
from text_core.tokenizer_files import NEEDS_TOKENIZER

log = structlog.get_logger(__name__)

_Request = TypeVar("_Request", inference_pb2.TokenizeRequest, inference_pb2.DetokenizeRequest)
_Response = TypeVar("_Response")
_Message = TypeVar("_Message", bound=Message)
_Received = TypeVar("_Received", inference_pb2.GenerateRequest, inference_pb2.SessionRequest)
_T = TypeVar("_T")
Pack = Callable[[inference_pb2.SessionResponse], Iterable[tuple[bytes | None, Status | None]]]
"""Converts a frame to serialized messages of a one-request call, each with the error that ends its request or choice
(None: no error); an error may come without a message."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one client's stream; times in seconds."""

    max_live_requests: int
    max_message_bytes: int
    stall_timeout: float
    drain_grace: float
    max_age: float
    """Age at which a session's client is asked to open another."""


@dataclass(frozen=True, slots=True)
class _WithPictures:
    """A look-up whose chat has pictures."""

    request: inference_pb2.TokenizeRequest
    model: ServedModel
    sources: Sequence[PictureSource]
    size: int
    """Bytes of its message."""


class InferenceService:
    """Methods take messages as bytes (see ``services.common.rpc.handlers``), and check their size before parsing."""

    def __init__(
        self,
        models: ServedModels,
        intake: Intake,
        queue: TokenizationQueue,
        pictures: PictureStage,
        metrics: ProcessorMetrics,
        limits: SessionLimits,
        tenant_header: str,
        policies: TenantPolicies,
        choices: ModelChoices,
        adapters: AdapterControl,
    ) -> None:
        self._models = models
        self._choices = choices
        self._listed = ListedModels(models, choices)
        self._adapters = adapters
        self._intake = intake
        self._queue = queue
        self._pictures = pictures
        self._metrics = metrics
        self.limits = limits
        self._tenant_header = tenant_header
        self._policies = policies

    # Generate and Session

    async def Generate(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        principal = await self.principal(context)
        self._check_not_draining(principal)
        stream = self._intake.open(principal, context.invocation_metadata() or ())
        try:
            refused = await self._begin(stream, data, context)
            del data  # the queue keeps its own copy
            if refused is None:
                error = await self.write_answer(stream, context, _packed)
            else:
                await self._send(stream, context, refused)
                error = status_from_proto(refused.refused.status)
        except TimeoutError:
            error = self.stalled(stream)
        finally:
            self._intake.close(stream)
        if error is not None:
            await abort(context, error)

    async def _begin(
        self, stream: ClientStream, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.GenerateResponse | None:
        """Begin a Generate call's request; returns the response if it is refused."""
        name, arrived_at = "", time.monotonic()
        try:
            request, sources = await self._received(inference_pb2.GenerateRequest, data, stream.tenant)
            name = usable_id(request)
            self._intake.begin(stream, request, 1, arrived_at, context.time_remaining(), sources)
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, stream.tenant)
            return refusal(name, 1, refused.status)
        return None

    # Vectors, scores and labels

    async def Embed(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return await self._pooled_or_abort(inference_pb2.EmbedRequest, data, context)

    async def Score(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return await self._pooled_or_abort(inference_pb2.ScoreRequest, data, context)

    async def Classify(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return await self._pooled_or_abort(inference_pb2.ClassifyRequest, data, context)

    async def _pooled_or_abort(
        self, kind: type[PoolingMessage], data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        """The answer of a call's one request, as it goes on the wire; ends the call if there is none."""
        answer = await self.pooled(kind, data, context)
        if isinstance(answer, Status):
            await abort(context, answer)
        return answer

    async def pooled(
        self, kind: type[PoolingMessage], data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes | Status:
        """The answer of a call's one request, serialized, or the reason why there is none.

        It may have 32 MiB, so it is never read here: that would hold up all clients.
        """
        principal = await self.principal(context)
        self._check_not_draining(principal)
        stream = self._intake.open(principal, context.invocation_metadata() or ())
        try:
            return await self._answer(stream, kind, data, context)
        except TimeoutError:
            return self.stalled(stream)
        finally:
            self._intake.close(stream)

    async def _answer(
        self, stream: ClientStream, kind: type[PoolingMessage], data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes | Status:
        arrived_at = time.monotonic()
        try:
            message = await self.parse(kind, data, stream.tenant)
            del data  # the queue keeps its own copy
            self._intake.begin(stream, message, 1, arrived_at, context.time_remaining())
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, stream.tenant)
            return refused.status
        del message
        while (answer := stream.take_answer()) is None:
            await stream.wake.wait()
            stream.wake.clear()
        stream.written()
        return answer.packed if isinstance(answer, PooledAnswer) else status_from_proto(answer.status)

    async def parse(self, kind: type[_Message], data: bytes, tenant: str) -> _Message:
        """Parse a message with a request; a large one in a worker thread, before others are tokenized.

        Raises ``Refused``. Until a model is known, the error is retryable: the model's limits may be wider.
        """
        return await self._in_turn(partial(parse, kind, data), kind, data, tenant)

    async def _received(
        self, kind: type[_Received], data: bytes, tenant: str
    ) -> tuple[_Received, Sequence[PictureSource]]:
        """Like ``parse``; also takes the pictures out of the message, which is as much work."""
        return await self._in_turn(partial(_parse_and_take, kind, data), kind, data, tenant)

    async def _in_turn(
        self, work_of: Callable[[MessageLimits], _T], kind: type[Message], data: bytes, tenant: str
    ) -> _T:
        limits = self._models.request_limits
        work = partial(work_of, limits)
        try:
            if len(data) > limits.max_bytes or is_cheap_to_parse(kind, data):
                return work()
            return await self._queue.run_in_thread(work, tenant, len(data), urgent=True)
        except Refused:
            if self._models.newest is None:
                raise self._models.refuse_without_model() from None
            raise

    def _check_not_draining(self, principal: Principal) -> None:
        try:
            self._intake.check_not_draining()
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, principal.tenant)
            raise

    async def Session(self, incoming: RequestStream, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        principal = await self.principal(context)
        self._check_not_draining(principal)
        stream = self._intake.open(principal, context.invocation_metadata() or ())
        loop, age, grace = asyncio.get_running_loop(), self.limits.max_age, self.limits.drain_grace
        timers = loop.call_later(age, stream.drain), loop.call_later(age + grace, stream.end_when_idle)
        try:
            end = await self._serve_session(stream, incoming, context)
        finally:
            for timer in timers:
                timer.cancel()
            self._intake.close(stream)
        if isinstance(end, Status):
            # Abort last: it waits until the client reads the status, and a client that stalls may not read it.
            await abort(context, end)
        if end is not None:
            try:
                raise end
            finally:
                del end  # breaks its reference cycle with this stack frame

    async def _serve_session(
        self, stream: ClientStream, incoming: RequestStream, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Status | BaseException | None:
        """Read and write until the end; returns the failure that ended it early, if any."""
        reader = asyncio.create_task(self._read_session(stream, incoming))
        writer = asyncio.create_task(self._write_session(stream, context, reader))
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

    async def _read_session(self, stream: ClientStream, incoming: RequestStream) -> None:
        ordinal = 0
        while (data := await incoming.read()) is not None:
            ordinal, arrived_at = ordinal + 1, time.monotonic()
            try:
                frame, sources = await self._received(inference_pb2.SessionRequest, data, stream.tenant)
            except Refused as refused:
                self._intake.refuse(stream, "", ordinal, refused.status)
            else:
                self._intake.session_frame(stream, frame, ordinal, arrived_at, sources)
                del frame, sources  # the queue keeps its own copy
            del data  # free the frame: the next one may take long to arrive
            while stream.num_refusals > MAX_REFUSALS:
                stream.room_for_refusals.clear()
                await stream.room_for_refusals.wait()

    async def write_answer(
        self, stream: ClientStream, context: grpc.aio.ServicerContext[Any, Any], pack: Pack
    ) -> Status | None:
        """Write until the request has ended; returns the error if it failed.

        Raises ``TimeoutError`` if the client does not read, and what ``pack`` raises.
        """
        error: Status | None = None
        while True:
            await stream.wake.wait()
            stream.wake.clear()
            while (frame := stream.take()) is not None:
                for response, failure in pack(frame):
                    if response is not None:
                        await self._send(stream, context, response)
                    error = failure or error
                stream.written()
            if stream.num_live == 0:
                return error

    async def _write_session(
        self, stream: ClientStream, context: grpc.aio.ServicerContext[Any, Any], reader: asyncio.Task[None]
    ) -> Status | None:
        """Write until all requests have ended and the client closed its side or was asked to, or until it stalls."""
        try:
            await self._write_news(stream, context, reader)
        except TimeoutError:  # not raised again: the error and its task would be a reference cycle
            return self.stalled(stream)
        return None

    async def _write_news(
        self, stream: ClientStream, context: grpc.aio.ServicerContext[Any, Any], reader: asyncio.Task[None]
    ) -> None:
        limits = inference_pb2.SessionLimits(
            max_live_requests=self.limits.max_live_requests,
            max_message_bytes=self.limits.max_message_bytes,  # not the model's limit: a session outlives models
            stall_timeout_ms=round(self.limits.stall_timeout * 1000),
        )
        await self._send(stream, context, inference_pb2.SessionResponse(limits=limits))
        reader.add_done_callback(lambda _: stream.wake.set())
        draining_sent = False
        while not ((reader.done() or stream.ending) and stream.num_live == 0 and stream.num_refusals == 0):
            await stream.wake.wait()
            stream.wake.clear()
            if (self._intake.draining or stream.draining) and not draining_sent:
                draining_sent = True
                draining = inference_pb2.SessionResponse()
                draining.draining.grace_ms = round(self.limits.drain_grace * 1000)
                await self._send(stream, context, draining)
            while (packed := stream.take_packed()) is not None:
                await self._send(stream, context, packed)
                stream.written()

    async def principal(self, context: grpc.aio.ServicerContext[Any, Any]) -> Principal:
        """The caller's principal; ends the call if its metadata is ambiguous."""
        if (principal := authenticated.get()) is not None:
            return principal
        try:
            return Principal(tenant_of(context.invocation_metadata() or (), self._tenant_header))
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, tenant="")
            await abort(context, refused.status)

    async def _send(self, stream: ClientStream, context: grpc.aio.ServicerContext[Any, Any], response: Any) -> None:
        await stream.write(context.write, response, self.limits.stall_timeout)

    def stalled(self, stream: ClientStream) -> Status:
        """The status of a call whose client does not read (a write raised ``TimeoutError``); ends the call soon."""
        reason = stream.stall_reason(self.limits.stall_timeout)
        log.info("client stalled", reason=reason)
        end_call_soon()
        return Status(Code.RESOURCE_EXHAUSTED, f"the client does not read: {reason}", given_reason=Reason.STALLED)

    # Look-ups

    async def Tokenize(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.TokenizeResponse:
        tenant = (await self.principal(context)).tenant
        try:
            return await self._tokenize(data, tenant)
        except Refused as refused:
            await abort(context, refused.status)

    async def _tokenize(self, data: bytes, tenant: str) -> inference_pb2.TokenizeResponse:
        """In two turns: pictures are prepared between them."""
        work = partial(self._begin_to_tokenize, data, self._models.lookup_limits, self._models.for_lookups(), tenant)
        begun = await self._queue.run_in_thread(work, tenant, len(data))
        if isinstance(begun, inference_pb2.TokenizeResponse):
            return begun
        async with self._pictures.prepared(begun.sources, begun.model, tenant) as pictures:
            rest = partial(tokenize, begun.request, begun.model, pictures)
            return await self._queue.run_in_thread(rest, tenant, begun.size)

    def _begin_to_tokenize(
        self, data: bytes, limits: MessageLimits, models: LookupModels, tenant: str
    ) -> inference_pb2.TokenizeResponse | _WithPictures:
        """The answer, or what waits for its pictures. Runs in a thread; raises ``Refused``."""
        request = parse(inference_pb2.TokenizeRequest, data, limits)
        model = self._choices.for_lookup(request.model, models, tenant)
        sources = take_sources(request.chat)
        if not sources:
            return tokenize(request, model)
        check_sources(sources)
        check_pictures(request.chat, sources, model)
        return _WithPictures(request, model, sources, len(data))

    async def Detokenize(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.DetokenizeResponse:
        return await self._look_up(detokenize, inference_pb2.DetokenizeRequest, data, context)

    async def ListModels(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        tenant = (await self.principal(context)).tenant
        return self._listed.answer(self._policies.of(tenant))

    async def LoadAdapter(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.LoadAdapterResponse:
        tenant = (await self.principal(context)).tenant
        return await self._adapters.load(parse(inference_pb2.LoadAdapterRequest, data, SMALL_MESSAGE), tenant)

    async def UnloadAdapter(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.UnloadAdapterResponse:
        tenant = (await self.principal(context)).tenant
        return await self._adapters.unload(parse(inference_pb2.UnloadAdapterRequest, data, SMALL_MESSAGE), tenant)

    async def ListAdapters(
        self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListAdaptersResponse:
        tenant = (await self.principal(context)).tenant
        return self._adapters.list(parse(inference_pb2.ListAdaptersRequest, data, SMALL_MESSAGE), tenant)

    async def _look_up(
        self,
        look_up: Callable[[_Request, ServedModel], _Response],
        kind: type[_Request],
        data: bytes,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> _Response:
        """Run ``look_up`` off the event loop; a refusal becomes the RPC's status."""
        tenant = (await self.principal(context)).tenant
        try:
            models, limits = self._models.for_lookups(), self._models.lookup_limits

            def work() -> _Response:
                request = parse(kind, data, limits)
                return look_up(request, self._choices.for_lookup(request.model, models, tenant))

            return await self._queue.run_in_thread(work, tenant, len(data))
        except Refused as refused:
            await abort(context, refused.status)


def _parse_and_take(
    kind: type[_Received], data: bytes, limits: MessageLimits
) -> tuple[_Received, Sequence[PictureSource]]:
    message = parse(kind, data, limits)
    if isinstance(message, inference_pb2.GenerateRequest):
        return message, take_sources(message.chat)
    return message, take_sources(message.generate.chat) if message.HasField("generate") else ()


def _packed(frame: inference_pb2.SessionResponse) -> list[tuple[bytes, Status | None]]:
    return [(one.SerializeToString(), _failure_in(one)) for one in frame.responses]


def _failure_in(response: inference_pb2.GenerateResponse) -> Status | None:
    """The error with which a response ends its request or choice, if any."""
    if response.HasField("refused"):
        return status_from_proto(response.refused.status)
    if response.HasField("choice_finished") and response.choice_finished.HasField("error"):
        return status_from_proto(response.choice_finished.error)
    return None


def tokenize(
    request: inference_pb2.TokenizeRequest, model: ServedModel, pictures: ChatPictures | None = None
) -> inference_pb2.TokenizeResponse:
    """The ids of a text or chat, as a request would get them; ``pictures``: the chat's. Raises ``Refused``."""
    rendered = ""
    match request.WhichOneof("input"):
        case "text" | "chat" as field if model.tokenizer.is_empty:
            raise refuse(field, NEEDS_TOKENIZER)
        case "text":
            text, special = request.text, True
            check_text_size("text", text, model.limits)
        case "chat":
            text = rendered = render_chat(request.chat, model)
            special = False
        case _:
            raise refuse("input", "none is set: expected text or chat")
    if request.HasField("add_special_tokens"):
        special = request.add_special_tokens
    if pictures is None:
        ids: Sequence[int] = model.tokenizer.encode(text, add_special_tokens=special)
    else:
        ids = prompt_with_pictures(request.chat, text, model, pictures, add_special_tokens=special).ids
    return inference_pb2.TokenizeResponse(
        token_ids=ids,
        rendered=rendered,
        max_model_len=model.limits.max_model_len,
    )


def detokenize(request: inference_pb2.DetokenizeRequest, model: ServedModel) -> inference_pb2.DetokenizeResponse:
    """The text of ids, decoded as a whole. Raises ``Refused``."""
    if model.tokenizer.is_empty and not request.pieces:  # the pieces of ids that have none are empty
        raise refuse("token_ids", NEEDS_TOKENIZER)
    limits = model.limits
    if len(request.token_ids) > limits.max_model_len:
        problem = f"{len(request.token_ids)} ids: expected at most {limits.max_model_len}, the model's context"
        raise refuse("token_ids", problem)
    ids = list(request.token_ids)
    check_token_ids("token_ids", ids, limits)
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    size = model.tokenizer.text_bytes(ids, skip_special_tokens=skip)
    if size > limits.max_text_bytes:
        raise refuse("token_ids", f"their text has {size} bytes: expected at most {limits.max_text_bytes}")
    pieces = _pieces(ids, model) if request.pieces else None
    return inference_pb2.DetokenizeResponse(text=model.tokenizer.decode(ids, skip_special_tokens=skip), pieces=pieces)


def _pieces(ids: Sequence[int], model: ServedModel) -> list[bytes]:
    """Each token's bytes within a text. Raises ``Refused``."""
    pieces, size = [], 0
    for token_id in ids:
        pieces.append(model.tokenizer.token_bytes(token_id))
        size += len(pieces[-1])
        if size > model.limits.max_text_bytes:
            limit = model.limits.max_text_bytes
            raise refuse("token_ids", f"their pieces have more than {limit} bytes together: expected fewer ids")
    return pieces
