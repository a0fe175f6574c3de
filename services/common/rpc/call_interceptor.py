"""The interceptor of every call: counted, authorized, read, answered in time, and ended with a status.

A handler's exception becomes the status: ``Refused`` its own, an unparsable message INVALID_ARGUMENT. Any other becomes
INTERNAL with an id under which the log has the traceback; the caller never gets the traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health

from services.common.rpc.handlers import Authorize, Context, read_single_request
from services.common.rpc.message_limits import MalformedMessage
from services.common.rpc.open_calls import Call, CallRegistry
from services.common.rpc.output_stream import write_in_time
from services.common.rpc.shared_messages import abort
from services.common.telemetry.logs import RateLimitedLog
from services.ring.errors import Code, Refused, Status

log = structlog.get_logger()

_OPEN_TO_ALL = f"/{health.SERVICE_NAME}/"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor of every server of the ring."""

    def __init__(
        self,
        calls: CallRegistry,
        stall_timeout: float,
        on_call: Callable[[str, int], None],
        authorizers: Sequence[Authorize] = (),
    ) -> None:
        """``stall_timeout``: seconds that a client has to read one message, and the status once the handler returned.

        ``on_call`` gets the peer of each call and the size of its metadata in bytes. ``authorizers`` are called in
        order before the first message of a call is read, except for health checks.
        """
        self._calls = calls
        self._on_call = on_call
        self._stall_timeout = stall_timeout
        self._authorizers = authorizers
        self._denials = RateLimitedLog(log, "denied")
        self._malformed = RateLimitedLog(log, "malformed message")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        call = self._calls.begin()
        handler = await continuation(handler_call_details)
        if handler is None:
            call.end_within(self._stall_timeout)
            return None
        return self._wrap(handler, str(handler_call_details.method), call)

    def _wrap(
        self, handler: grpc.RpcMethodHandler[Any, Any], method: str, call: Call
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """``handler`` wrapped in one that limits, authorizes and logs its calls, and turns its errors into statuses.

        Single requests are read like streams: gRPC would wait for one without a time limit before it calls a handler.
        """
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))
        if inspect.isasyncgenfunction(behavior):
            behavior = _writing(behavior, self._stall_timeout)

        async def respond(context: Context) -> Any:
            self._authorize(context, method)
            requests = _Requests(context) if handler.request_streaming else await read_single_request(context)
            return await behavior(requests, context)

        async def answer(_: object, context: Context) -> Any:
            try:
                await self._calls.wait_turn()
                metadata = context.invocation_metadata() or ()
                self._on_call(context.peer(), sum(len(key) + len(value) for key, value in metadata))
                if (refusal := self._calls.admit(call, context.peer())) is not None:
                    await _abort(context, refusal)
                return await self._answer(respond, context, method)
            except asyncio.CancelledError:
                if call.eviction is not None:
                    await _abort(context, call.eviction)
                raise
            finally:
                call.end_within(self._stall_timeout)

        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        deserializer = _deserializer(handler.request_deserializer)
        return make(answer, deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    def _authorize(self, context: Context, method: str) -> None:
        if method.startswith(_OPEN_TO_ALL):
            return
        try:
            for authorize in self._authorizers:
                authorize(context, method)
        except Refused as refused:
            code = refused.status.code.name
            self._denials.write(method=method, peer=context.peer(), code=code, reason=str(refused))
            raise

    # No generator-based context manager: from Python 3.12 on, an error that it raises is kept in a cycle.
    async def _answer(self, respond: Callable[[Context], Awaitable[Any]], context: Context, method: str) -> Any:
        """Respond, log the RPC at debug level, and end it with the status of an exception."""
        start = time.monotonic()

        def log_end(**end: str) -> None:
            log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, **end)

        try:
            response = await respond(context)
        except asyncio.CancelledError:
            log_end(code="CANCELLED")
            raise
        except grpc.aio.AbortError as error:
            log_end(code=_code(context))
            forget_frames(error)
            raise _ended() from None
        except Refused as refused:
            log_end(code=refused.status.code.name)
            await _abort(context, refused.status)
        except MalformedMessage as error:
            self._malformed.write(method=method, peer=context.peer(), error=str(error))
            await _abort(context, Status(Code.INVALID_ARGUMENT, f"the message cannot be parsed: {error}"))
        except Exception as error:
            # The call has ended: nothing to abort. (InternalError: a write failed because the call is over.)
            if isinstance(error, grpc.aio.InternalError) or (context.done() and isinstance(error, grpc.aio.BaseError)):
                log_end(error=str(error))
                forget_frames(error)
                raise _ended() from None
            error_id = secrets.token_hex(4)
            log.error(
                "unexpected error in an RPC", method=method, peer=context.peer(), error_id=error_id, exc_info=True
            )
            await _abort(context, Status(Code.INTERNAL, f"internal error; find {error_id} in the server's log"))
        log_end(code=_code(context))
        return response


class _Requests(AsyncIterator[Any]):
    """The requests of a call. Replaces gRPC's own iterator, whose reference cycle would keep the call alive."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __anext__(self) -> Any:
        if (message := await self._context.read()) is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


def _deserializer(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """``parse``, but raising ``MalformedMessage``. It runs when the handler reads, so the error passes through it."""
    if parse is None:
        return None

    def deserialize(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            raise MalformedMessage(str(error)) from None

    return deserialize


def _writing(
    behavior: Callable[..., AsyncGenerator[Any, None]], stall_timeout: float
) -> Callable[..., Awaitable[None]]:
    """A handler that writes what an async generator yields.

    gRPC does not close a generator whose caller has gone: it would be closed some time after its call was freed, and
    any use of its context would then crash the process.
    """

    async def call(request: Any, context: Context) -> None:
        async with aclosing(behavior(request, context)) as responses:
            async for response in responses:
                await write_in_time(context, response, stall_timeout)

    return call


async def _abort(context: Context, status: Status) -> NoReturn:
    """End the RPC with ``status``, unless it has ended: aborted by its handler, or cancelled by its caller."""
    if not context.done():
        try:
            with suppress(grpc.aio.InternalError, grpc.aio.UsageError):
                await abort(context, status)
        except grpc.aio.AbortError as error:
            forget_frames(error)
    raise _ended()


def forget_frames(error: BaseException) -> None:
    """Break the reference cycles through an error, and through those that led to it.

    After an abort, the cycle call → error → traceback → the handler's frames → call and request would stay until
    Python's next collection. So would the error of a task and the handler's frame that waited for the task.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__, link.__context__, link = None, None, link.__context__


def _ended() -> asyncio.CancelledError:
    """The error to raise after an RPC has ended: gRPC would log any other."""
    return asyncio.CancelledError()


def _code(context: Context) -> str:
    """Name of the status that the handler set; OK if it set none."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK.name
