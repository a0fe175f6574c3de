"""The error interceptor: registers every call of a server, and turns what its handler raises into a status.

``Refused`` becomes its status, and a message that cannot be parsed INVALID_ARGUMENT. Any other exception becomes
INTERNAL with an id under which the log has the traceback; the caller never gets the traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.common.rpc.calls import Call, CallRegistry, end_call_soon
from services.common.rpc.handlers import read_single_request
from services.common.rpc.message_limits import MalformedMessage
from services.common.rpc.shared_messages import abort
from services.common.telemetry.logs import RateLimitedLog
from services.ring.errors import Code, Reason, Refused, Status

log = structlog.get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The outermost interceptor of every server of the ring."""

    def __init__(self, calls: CallRegistry, stall_timeout: float, on_call: Callable[[str, int], None]) -> None:
        """``stall_timeout``: seconds that a client has to read one message, and the status once the handler returned.

        ``on_call`` gets the peer of each call and the size of its metadata in bytes.
        """
        self._calls = calls
        self._on_call = on_call
        self._stall_timeout = stall_timeout
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
        """``handler`` wrapped in one that limits and logs its calls, and turns its errors into statuses.

        Single requests are read like streams: gRPC would wait for one without a time limit before it calls a handler.
        """
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))
        read_request = _request_iterator if handler.request_streaming else read_single_request
        respond = _write_responses(behavior, self._stall_timeout) if inspect.isasyncgenfunction(behavior) else behavior

        async def answer(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                await self._calls.wait_turn()
                self._on_call(context.peer(), sum(len(key) + len(value) for key, value in _metadata(context)))
                if (refusal := call.admit(context.peer())) is not None:
                    await _abort(context, refusal)
                return await _answer(respond, read_request, context, method, self._malformed)
            except asyncio.CancelledError:
                if call.eviction is not None:
                    await _abort(context, call.eviction)
                raise
            finally:
                call.end_within(self._stall_timeout)

        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        deserializer = _deserializer(handler.request_deserializer)
        return make(answer, deserializer, handler.response_serializer)  # type: ignore[no-any-return]


def _metadata(context: grpc.aio.ServicerContext[Any, Any]) -> Iterable[tuple[str, str | bytes]]:
    return context.invocation_metadata() or ()


async def _request_iterator(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
    return _RequestIterator(context)


class _RequestIterator(AsyncIterator[Any]):
    """The requests of a call. Replaces gRPC's own iterator, whose reference cycle would keep the call alive."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
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


def _write_responses(
    behavior: Callable[..., AsyncGenerator[Any, None]], stall_timeout: float
) -> Callable[..., Awaitable[None]]:
    """A handler that writes what an async generator yields, each response within ``stall_timeout`` seconds.

    gRPC does not close a generator whose caller has gone: it would be closed some time after its call was freed, and
    any use of its context would then crash the process.
    """

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async with aclosing(behavior(request, context)) as responses:
            async for response in responses:
                try:
                    async with asyncio.timeout(stall_timeout):
                        await context.write(response)
                except TimeoutError:
                    end_call_soon()
                    message = f"the client read nothing for {stall_timeout:g} s, the limit"
                    raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.STALLED) from None

    return call


# Not a context manager made of a generator: from Python 3.12 on, an error that it raises instead is kept in a cycle.
async def _answer(
    respond: Callable[..., Awaitable[Any]],
    read_request: Callable[[grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]],
    context: grpc.aio.ServicerContext[Any, Any],
    method: str,
    malformed: RateLimitedLog,
) -> Any:
    """Read the request and respond: log the RPC at debug level, and end it with the status of what is raised."""
    start = time.monotonic()
    try:
        response = await respond(await read_request(context), context)
    except asyncio.CancelledError:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code="CANCELLED")
        raise
    except grpc.aio.AbortError as error:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))
        forget_frames(error)
        raise _ended() from None
    except Refused as refused:
        await _abort(context, refused.status)
    except MalformedMessage as error:
        malformed.write(method=method, peer=context.peer(), error=str(error))
        await _abort(context, Status(Code.INVALID_ARGUMENT, f"the message cannot be parsed: {error}"))
    except Exception as error:
        # The call has ended: there is nothing to abort. (InternalError: a write failed because the call is over.)
        if isinstance(error, grpc.aio.InternalError) or (context.done() and isinstance(error, grpc.aio.BaseError)):
            log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, error=str(error))
            forget_frames(error)
            raise _ended() from None
        await _abort_internal(context, method)
    log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))
    return response


async def _abort_internal(context: grpc.aio.ServicerContext[Any, Any], method: str) -> NoReturn:
    error_id = secrets.token_hex(4)
    log.error("unexpected error in an RPC", method=method, peer=context.peer(), error_id=error_id, exc_info=True)
    await _abort(context, Status(Code.INTERNAL, f"internal error; find {error_id} in the server's log"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
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

    gRPC's call keeps the error of an abort, the error its traceback, and the traceback every frame of the handler,
    with the call and the request: a cycle that would stay until Python's next collection. So would the error of a task
    and the handler's frame that waited for the task.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__, link.__context__, link = None, None, link.__context__


def _ended() -> asyncio.CancelledError:
    """The error to raise after an RPC has ended: gRPC would log any other."""
    return asyncio.CancelledError()


def _code(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Name of the status that the handler set; OK if it set none."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK.name
